"""Sends the tensors of a micro-batch to another rank as bytes, with their shapes and strides, as
kernels may compute otherwise with other strides."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from hpckit.trainer.parallel.collectives import collective_device

MOST_TENSORS, MOST_DIMENSIONS = 8, 8
DTYPES = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)
"""The dtypes that a tensor of a micro-batch may have."""

_FIELDS = 3 + 2 * MOST_DIMENSIONS  # dtype, is on the CPU, dimensions; sizes, order of dimensions


def problem_of(tensors: Sequence[object]) -> str | None:
    """Return why these are not tensors that can be sent; None if they can be."""
    if len(tensors) > MOST_TENSORS:
        return f"{len(tensors)} tensors; at most {MOST_TENSORS} can be"
    for one in tensors:
        if not isinstance(one, Tensor):
            return f"a {type(one).__name__}, which is not a tensor"
        if one.dtype not in DTYPES or one.ndim > MOST_DIMENSIONS:
            return f"a tensor of {one.dtype} with {one.ndim} dimensions"
    return None


def repacked(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of `tensors` with the same strides as those that another rank receives."""
    return [_unpacked(_bytes(one), one.dtype, *_layout(one)) for one in tensors]


def exchange(tensors: Sequence[Tensor], to: int, from_: int) -> list[Tensor]:
    """Send `tensors` to rank `to`, and return those of rank `from_`. Collective."""
    device = collective_device()
    header = _swap([_header(tensors).to(device)], [_header([]).to(device)], to, from_)[0].tolist()
    count, rows = header[0], header[1:]
    described = [rows[i * _FIELDS : (i + 1) * _FIELDS] for i in range(count)]
    kinds = [(DTYPES[row[0]], bool(row[1]), *_of_row(row)) for row in described]
    room = []
    for dtype, _, sizes, _ in kinds:
        bytes_ = torch.Size(sizes).numel() * dtype.itemsize
        room.append(torch.empty(bytes_, dtype=torch.uint8, device=device))
    received = _swap([_bytes(one).to(device) for one in tensors], room, to, from_)
    found = []
    for content, (dtype, is_on_cpu, sizes, order) in zip(received, kinds, strict=True):
        found.append(_unpacked(content.cpu() if is_on_cpu else content, dtype, sizes, order))
    return found


def _swap(sent: Sequence[Tensor], room: Sequence[Tensor], to: int, from_: int) -> list[Tensor]:
    operations = [dist.P2POp(dist.isend, one, to) for one in sent if one.numel()]
    operations += [dist.P2POp(dist.irecv, one, from_) for one in room if one.numel()]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
    return list(room)


def _header(tensors: Sequence[Tensor]) -> Tensor:
    rows = [len(tensors)]
    for one in tensors:
        sizes, order = _layout(one)
        padding = [0] * (MOST_DIMENSIONS - one.ndim)
        row = [DTYPES.index(one.dtype), int(one.is_cpu), one.ndim]
        rows += [*row, *sizes, *padding, *order, *padding]
    rows += [0] * (1 + MOST_TENSORS * _FIELDS - len(rows))
    return torch.tensor(rows, dtype=torch.int64)


def _of_row(row: Sequence[int]) -> tuple[list[int], list[int]]:
    dimensions = row[2]
    sizes = list(row[3 : 3 + dimensions])
    order = list(row[3 + MOST_DIMENSIONS : 3 + MOST_DIMENSIONS + dimensions])
    return sizes, order


def _layout(tensor: Tensor) -> tuple[list[int], list[int]]:
    """Return the sizes, and the dimensions in the order in which they lie in memory."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda one: (-strides[one], one))
    return list(tensor.shape), order


def _bytes(tensor: Tensor) -> Tensor:
    """Return a copy of the content, in the order in which it lies in memory: uint8[bytes]."""
    _, order = _layout(tensor)
    content = tensor.detach().permute(order).clone(memory_format=torch.contiguous_format)
    return content.view(-1).view(torch.uint8)


def _unpacked(
    content: Tensor, dtype: torch.dtype, sizes: Sequence[int], order: Sequence[int]
) -> Tensor:
    in_memory = content.view(dtype).view([sizes[one] for one in order])
    return in_memory.permute([order.index(one) for one in range(len(order))])
