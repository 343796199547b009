"""Which cores the threads of this process keep to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def keep_to(cores: set[int]) -> None:
    """All threads that this process has now, and those that they start."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), cores)


@contextmanager
def starting_on(cores: set[int]) -> Iterator[None]:
    """What this thread starts in the block, threads and processes, keeps to these cores; the
    thread itself returns to its own."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
