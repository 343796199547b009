"""What the steps of a run cost by operation and by layer, as `step_costs` writes it. Pure; without
torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

ENDING = "costs.json"
"""What the name of the file of a rank ends in, in `profile/` of the run directory."""


@dataclass(frozen=True)
class MachinePeaks:
    """Rates that the device of a rank has reached when nothing else ran on it."""

    dtype: str
    """Format of the matrix product."""
    flops_per_s: float
    """Operations per second of a large matrix product."""
    bytes_per_s: float
    """Bytes per second, read and written, of a copy within the memory of the device."""

    @property
    def ridge(self) -> float:
        """Operations per byte from which on computation is the limit."""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True)
class OperationCost:
    """An operation of torch, summed over its calls in a step."""

    name: str
    """Its name, as in `aten::addmm`."""
    calls: float
    """Calls in a step."""
    cpu_s: float
    """Seconds of a step in which a thread of the CPU was in it."""
    device_s: float | None
    """Seconds of a step in which kernels of it ran on a GPU; None: no operation ran on one."""
    kernel: str
    """The kernel, or without a GPU the innermost operation, that took most of its time."""
    flops: float | None = None
    """Floating-point operations of a step. They are known of matrix products, convolutions and
    attention, and 0 for others; None: they were not counted."""
    bytes: float | None = None
    """Bytes of a step that it reads and writes: its inputs and outputs. None: not counted."""

    @property
    def seconds(self) -> float:
        """The seconds on the GPU, or without one on the CPU."""
        return self.cpu_s if self.device_s is None else self.device_s


@dataclass(frozen=True)
class LayerMemory:
    """Memory that a layer keeps from its forward pass for the backward pass."""

    name: str
    kind: str
    """Class of the module."""
    bytes: int


@dataclass(frozen=True)
class StepCosts:
    """The costs of the steps of one rank."""

    device: str
    """Name of the GPU, or "cpu"."""
    torch: str
    """Version of torch."""
    threads: int
    """CPU threads of an operation."""
    first_step: int
    """The first step that was profiled."""
    steps: int
    """Number of steps that were profiled."""
    is_compiled: bool
    """Whether blocks were compiled, so that operations and layers cannot be counted."""
    peaks: MachinePeaks
    operations: tuple[OperationCost, ...]
    """The operations, the one with the most time first."""
    layers: tuple[LayerMemory, ...]
    """The layers in the order of the forward pass of a micro-batch."""

    @property
    def is_gpu(self) -> bool:
        return any(one.device_s is not None for one in self.operations)


COSTS = TypeAdapter(StepCosts)
"""Reads and writes the costs as JSON."""


def costs_file(folder: Path) -> Path | None:
    """Return the file of rank 0 of the newest attempt in the folder `profile/` of a run; None:
    there is none."""
    return max(folder.glob(f"*-rank0.{ENDING}"), default=None)


@dataclass(frozen=True)
class RooflinePoint:
    """An operation, or a whole step, below the roofline of a machine (Williams et al. 2009)."""

    intensity: float
    """Floating-point operations per byte."""
    reached: float
    """Floating-point operations per second."""
    limit: float
    """The most that the machine allows at this intensity."""
    is_compute_bound: bool

    @property
    def bound(self) -> str:
        return "compute" if self.is_compute_bound else "memory"


def roofline_point(
    flops: float | None, moved: float | None, seconds: float, peaks: MachinePeaks
) -> RooflinePoint | None:
    """Return the point of so many operations and bytes in so many seconds. None: they were not
    counted, or nothing was moved."""
    if flops is None or not moved or seconds <= 0:
        return None
    intensity = flops / moved
    return RooflinePoint(
        intensity=intensity,
        reached=flops / seconds,
        limit=min(peaks.flops_per_s, intensity * peaks.bytes_per_s),
        is_compute_bound=intensity >= peaks.ridge,
    )


def share_of_limit(cost: OperationCost, peaks: MachinePeaks) -> float | None:
    """Return the share of what its limit allows that an operation reaches: of the bandwidth if it
    is bound by memory, else of the operations per second. None: it was not counted."""
    if cost.flops is None or not cost.bytes or cost.seconds <= 0:
        return None
    at_best = max(cost.flops / peaks.flops_per_s, cost.bytes / peaks.bytes_per_s)
    return at_best / cost.seconds


def peak_of_activations(layers: Sequence[LayerMemory]) -> int:
    """Return the bytes that all layers keep when the backward pass begins."""
    return sum(layer.bytes for layer in layers)
