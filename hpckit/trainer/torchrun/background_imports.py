"""Imports that use little processor time while other processes need it: importing torch takes
seconds of it, which a node with few cores would take from its ranks."""

from __future__ import annotations

import importlib.abc
import os
import select
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

SHARE = 0.2
"""Share of one processor that the imports take on average where none is idle."""
IDLE = 0.8
"""Number of processors that have to be idle on average for the imports not to sleep."""
_SLICE_S = 0.01
_LOOK_S = 0.1


class BackgroundImportFinder(importlib.abc.MetaPathFinder):
    """A module finder that finds nothing, but sleeps before each import, so that all of them take
    `share` of a processor.

    It does not sleep while processors are idle, nor once there is something to read from `fd`,
    which means that somebody waits for the imports.
    """

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
        self._looked_s, self._idle_s, self._are_idle = 0.0, 0.0, False

    def are_idle(self) -> bool:
        """Whether `IDLE` of a processor or more was idle lately."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            idle_s = self._read()
            share = (idle_s - self._idle_s) / (now_s - self._looked_s)
            self._are_idle = bool(self._looked_s) and share >= IDLE
            self._looked_s, self._idle_s = now_s, idle_s
        return self._are_idle

    def _read(self) -> float:
        """Return the seconds for which they have been idle since the machine started
        (proc_stat(5))."""
        names = {b"cpu%d" % number for number in self._numbers}
        with open("/proc/stat", "rb") as file:  # text would import its encoding
            rows = [line.split() for line in file if line.startswith(b"cpu")]
        ticks = sum(int(row[4]) for row in rows if row[0] in names)
        return ticks / float(os.sysconf("SC_CLK_TCK"))
