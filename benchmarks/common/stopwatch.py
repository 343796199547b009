"""Timing the arms of a comparison: bytes per second of wall time, and CPU time beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from benchmarks.common.arm_comparison import Measure


def _nothing(name: str) -> None: ...


@dataclass(frozen=True)
class Stopwatch:
    """Measures the arms of a comparison that each process `nbytes` bytes."""

    nbytes: int
    ways: Mapping[str, Callable[[], object]]
    before: Callable[[str], None] = _nothing  # each, outside the clock
    after: Callable[[str], None] = _nothing
    _cpu_s: dict[str, list[float]] = field(default_factory=dict)

    def arms(self) -> dict[str, Measure]:
        """Returns the arms for `interleave`, each of which returns GB/s."""
        return {name: partial(self._time, name) for name in self.ways}

    def cpu_per_gb(self, name: str) -> float:
        """Returns the median of the CPU seconds per GB of an arm, without the first round."""
        return median(self._cpu_s[name][1:]) / (self.nbytes / 1e9)

    def _time(self, name: str) -> float:
        self.before(name)
        begun_s, cpu_s = time.perf_counter(), time.process_time()
        self.ways[name]()
        seconds = time.perf_counter() - begun_s
        self._cpu_s.setdefault(name, []).append(time.process_time() - cpu_s)
        self.after(name)
        return self.nbytes / seconds / 1e9
