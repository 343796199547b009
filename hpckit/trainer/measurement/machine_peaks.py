"""Measures the rates that a device reaches in a matrix product and in a copy."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from hpckit.trainer.device.device_queue import synchronize
from hpckit.trainer.measurement.cost_report import MachinePeaks

_BUDGET_S = 0.3
"""Seconds of each measurement, of which the fastest call counts."""
_SIDE = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices."""
_LEAST_SIDE = 1024
_COPY_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Bytes of the copied tensor. Together with the copy it is more than most caches hold."""


def measure_peaks(
    device: torch.device, dtype: torch.dtype, budget_s: float = _BUDGET_S
) -> MachinePeaks:
    """Return the rates of `device`; of a CPU, with the threads that this process has. Where a GPU
    has too little memory left, a part of it serves.

    Raises:
        torch.OutOfMemoryError: it has next to none.
    """
    side, size = _SIDE[device.type], _COPY_BYTES[device.type]
    while True:
        try:
            return _measured(device, dtype, budget_s, side, size)
        except torch.OutOfMemoryError:
            if side <= _LEAST_SIDE:
                raise
            side, size = side // 2, size // 2


def _measured(
    device: torch.device, dtype: torch.dtype, budget_s: float, side: int, size: int
) -> MachinePeaks:
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty(side, side, device=device, dtype=dtype)
    product_s = _fastest(lambda: torch.mm(left, right, out=product), device, budget_s)
    source = torch.ones(size // 4, device=device)
    copy = torch.empty_like(source)
    copy_s = _fastest(lambda: copy.copy_(source), device, budget_s)
    return MachinePeaks(
        dtype=str(dtype).removeprefix("torch."),
        flops_per_s=2 * side**3 / product_s,
        bytes_per_s=2 * source.nbytes / copy_s,
    )


def _fastest(call: Callable[[], object], device: torch.device, budget_s: float) -> float:
    """Return the seconds of the fastest call, after a first one."""
    _timed(call, device)
    best_s, until_s = _timed(call, device), time.perf_counter() + budget_s
    while time.perf_counter() < until_s:
        best_s = min(best_s, _timed(call, device))
    return best_s


def _timed(call: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    begun_s = time.perf_counter()
    call()
    synchronize(device)
    return max(1e-9, time.perf_counter() - begun_s)
