"""Matrix products whose results are exact, so that those of all devices can be compared bit for bit
with each other and with the CPU's.

The elements are small integers: every partial sum is an integer below 2^24, which float32 holds
exactly, in whatever order a library adds. float32, TF32 and bfloat16 inputs hold the elements
exactly, too. So a difference is an error of the hardware, and never of rounding.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import torch

from hpckit.trainer.device.device_queue import synchronize

SIZE = {"cpu": 256, "cuda": 8192}
"""Rows and columns of the matrices whose products are timed."""
_CHECKED_ROWS = 64
"""Rows whose product the CPU makes, too, as it takes long for large matrices."""
_LARGEST = 8  # |sum| <= SIZE * 64 <= 2^19
_MOST_PRODUCTS = 2000


@dataclass(frozen=True)
class MatrixResult:
    """The result of the matrix products of one device."""

    flops: float
    """FLOP per second."""
    digest: float
    """52 bits of a hash of the product, as a number that a collective carries exactly."""
    is_as_cpu: bool
    """Whether the checked rows are those that the CPU has computed."""
    is_repeatable: bool
    """Whether all products of this device were the same."""


def check_matrix_products(device: torch.device, seconds: float) -> MatrixResult:
    """Multiplies the same matrices on this device for `seconds`, in each precision that it is used
    in, and compares the results."""
    kinds = [torch.float32] if device.type == "cpu" else [torch.bfloat16, torch.float32]
    size = SIZE[device.type]
    left, right = _matrices(size)
    wanted = left[:_CHECKED_ROWS].double() @ right.double()  # by other kernels than those below
    digests, is_as_cpu, is_repeatable, flops = [], True, True, 0.0
    for kind in kinds:
        one, other = left.to(device, kind), right.to(device, kind)
        first = one @ other
        shown = first[:_CHECKED_ROWS].cpu()
        is_as_cpu &= bool(torch.equal(shown, wanted.to(kind)))
        content = first.cpu().contiguous().view(torch.uint8).numpy()
        digests.append(hashlib.sha256(content.data).digest())
        rate, is_same = _repeat(one, other, first, seconds)
        is_repeatable &= is_same
        flops = max(flops, rate)
    digest = hashlib.sha256(b"".join(digests)).digest()
    return MatrixResult(flops, float(int.from_bytes(digest[:6])), is_as_cpu, is_repeatable)


def _matrices(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the matrices, which are the same on all ranks: float32, of shape (size, size)."""
    generator = torch.Generator().manual_seed(20_261_127)
    shape = (2, size, size)
    numbers = torch.randint(-_LARGEST, _LARGEST + 1, shape, generator=generator)
    left, right = numbers.to(torch.float32).unbind()
    return left, right


def _repeat(
    one: torch.Tensor, other: torch.Tensor, first: torch.Tensor, seconds: float
) -> tuple[float, bool]:
    """Returns the FLOP per second, and whether each product is `first`."""
    result = torch.empty_like(first)
    differs = torch.zeros((), dtype=torch.bool, device=first.device)
    count, begun_s = 0, time.perf_counter()
    while count == 0 or (count < _MOST_PRODUCTS and time.perf_counter() - begun_s < seconds):
        torch.mm(one, other, out=result)
        differs |= (result != first).any()  # takes a small part of the time of a product
        synchronize(result.device)
        count += 1
    flops = 2.0 * one.shape[0] * one.shape[1] * other.shape[1]
    return count * flops / (time.perf_counter() - begun_s), not bool(differs)
