"""How fast a model trains with batches of different sizes in different precisions. Pure; without
torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import TypeAdapter

PrecisionName: TypeAlias = Literal["fp32", "fp16", "bf16"]
PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "fp16", "bf16")
ENOUGH = 1.05
"""Factor by which a batch of twice the size has to be faster for the search to go on."""
WITHIN = 0.97
"""Share of the highest speed from which on a smaller batch is preferred."""


@dataclass(frozen=True)
class BatchSizeSearch:
    """What is timed."""

    precisions: tuple[PrecisionName, ...]
    most: int
    """The largest number of samples."""
    step_s: float
    """Seconds of the longest step."""
    output: str
    """The file of the report, on a file system that all nodes share."""


SEARCH = TypeAdapter(BatchSizeSearch)
"""Reads a search from the config of a run."""


@dataclass(frozen=True)
class BatchTiming:
    """Steps with one size of the micro-batch in one precision."""

    precision: PrecisionName
    samples: int
    """Samples of the micro-batch, which is the whole step."""
    step_s: float | None
    """Median seconds of a step; None: memory did not suffice."""
    peak_bytes: int | None
    """Peak of torch's tensors on a GPU; None: on a CPU, or memory did not suffice."""

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.step_s if self.step_s else 0.0


@dataclass(frozen=True)
class BatchSizeReport:
    """All timings of `batch_size_timing`."""

    device: str
    torch: str
    threads: int
    timings: tuple[BatchTiming, ...]
    failures: dict[str, str]
    """Why a precision could not be used, by its name."""


REPORT = TypeAdapter(BatchSizeReport)
"""Reads and writes a report as JSON."""


def should_double(timings: Sequence[BatchTiming], most: int, budget_s: float) -> bool:
    """Return whether the search goes on with twice the last size.

    Args:
        timings: those of one precision, in the order of their size.
        most: the largest number of samples.
        budget_s: seconds of a step from which on twice as many are not tried.
    """
    last = timings[-1]
    if last.step_s is None or 2 * last.samples > most or last.step_s > budget_s:
        return False
    if len(timings) < 3:  # the first sizes may be bound by the time to start operations
        return True
    return last.samples_per_s >= ENOUGH * timings[-2].samples_per_s


def best_batch(timings: Iterable[BatchTiming]) -> BatchTiming | None:
    """Return the smallest batch that is nearly as fast as the fastest one. None: nothing ran."""
    done = [one for one in timings if one.step_s is not None]
    if not done:
        return None
    fastest = max(one.samples_per_s for one in done)
    return next(one for one in done if one.samples_per_s >= WITHIN * fastest)
