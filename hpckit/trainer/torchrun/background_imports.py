"""Imports that leave processor time to other processes: the import of torch takes seconds of it,
which ranks would lack on a node with few cores."""

from __future__ import annotations

import importlib.abc
import os
import select
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

SHARE = 0.2
"""Share of one processor that the imports take on average if no processor is idle."""
IDLE = 0.8
"""Number of idle processors, on average, from which on the imports do not sleep."""
_SLICE_S = 0.01
_MEASURE_S = 0.1


class BackgroundImportFinder(importlib.abc.MetaPathFinder):
    """A module finder that finds nothing, but sleeps before each import, so that all imports
    together take `share` of a processor.

    It does not sleep while a processor is idle, nor once there is something to read from `fd`,
    since another process then waits for the imports."""

    def __init__(self, fd: int, share: float = SHARE) -> None:
        self._sleeps_per_s, self._fd = (1 - share) / share, fd
        self._since_s = time.process_time()
        self._cores = ProcessorIdleness()
        self._is_wanted = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        used_s = time.process_time() - self._since_s
        if not self._is_wanted and used_s >= _SLICE_S:
            sleep_s = 0.0 if self._cores.are_idle() else used_s * self._sleeps_per_s
            found, _, _ = select.select([self._fd], [], [], sleep_s)
            self._is_wanted = bool(found)
            self._since_s = time.process_time()
        return None


class ProcessorIdleness:
    """The idle time of the processors that this process may use."""

    def __init__(self) -> None:
        self._numbers = os.sched_getaffinity(0)
        self._measured_s, self._idle_s, self._are_idle = 0.0, 0.0, False

    def are_idle(self) -> bool:
        """Whether at least `IDLE` processors were idle on average lately."""
        now_s = time.monotonic()
        if now_s - self._measured_s >= _MEASURE_S:
            idle_s = self._read()
            share = (idle_s - self._idle_s) / (now_s - self._measured_s)
            self._are_idle = bool(self._measured_s) and share >= IDLE
            self._measured_s, self._idle_s = now_s, idle_s
        return self._are_idle

    def _read(self) -> float:
        """Return the seconds for which the processors were idle since the machine started, summed
        up (proc_stat(5))."""
        names = {b"cpu%d" % number for number in self._numbers}
        with open("/proc/stat", "rb") as file:  # text would import its encoding
            rows = [line.split() for line in file if line.startswith(b"cpu")]
        ticks = sum(int(row[4]) for row in rows if row[0] in names)
        return ticks / float(os.sysconf("SC_CLK_TCK"))
