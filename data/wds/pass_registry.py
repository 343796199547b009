"""The agreement of a `DataLoader`'s workers on the pass over the data that they make.

A `DataLoader` starts new workers for each of its iterations, from a dataset that has not moved, and
they do not know each other. Here they agree: the first worker of an iteration records where its
pass begins and ends, in memory that all share; the next iteration begins at the end. This holds
however far workers read ahead, and wherever the consumer stops.
"""

import multiprocessing
from collections.abc import Callable
from multiprocessing import sharedctypes
from typing import Any

from data.errors import DataError
from data.wds.ranks_and_workers import LoaderWorker

MOST_WORKERS = 1024
_ENTRIES, _FIELDS = 64, 5  # the passes that began last; number, seed, workers, begin, end


class PassRegistry:
    """The shared record of passes, inherited by forked workers."""

    def __init__(self) -> None:
        self._lock = multiprocessing.get_context("fork").Lock()
        self._spawns = False
        self._count: Any = sharedctypes.RawValue("q", 0)
        self._entries: Any = sharedctypes.RawArray("q", _ENTRIES * _FIELDS)
        self._last: Any = sharedctypes.RawArray("q", MOST_WORKERS)

    def begin(
        self, worker: LoaderWorker, first: tuple[int, int], end_of: Callable[[int], int]
    ) -> tuple[int, int]:
        """Register a worker; returns the positions where the pass of this iteration begins and
        ends.

        Args:
            first: begin and end of the very first pass.
            end_of: returns the end of a later pass that begins at a position.

        Raises DataError for more than `MOST_WORKERS` workers.
        """
        if worker.workers > MOST_WORKERS:
            raise DataError(
                f"{worker.workers} workers are too many: at most {MOST_WORKERS} are allowed"
            )
        with self._lock:
            at = self._of(worker)
            if at is None:
                number = int(self._count.value) + 1
                begin, end = first
                if number > 1:
                    begin = self._entry(number - 1)[4]
                    end = end_of(begin)
                at = (number - 1) % _ENTRIES
                entry = (number, _word(worker.seed), worker.workers, begin, end)
                self._entries[at * _FIELDS : (at + 1) * _FIELDS] = entry
                self._count.value = number
            number, _, _, begin, end = self._entries[at * _FIELDS : (at + 1) * _FIELDS]
            self._last[worker.id] = number
            return begin, end

    def _of(self, worker: LoaderWorker) -> int | None:
        """Return the newest iteration that was started with the same seed, unless this worker is in
        it already."""
        newest = int(self._count.value)
        for number in range(newest, max(0, newest - _ENTRIES), -1):
            _, seed, count, _, _ = self._entry(number)
            if (seed, count) == (_word(worker.seed), worker.workers):
                return (number - 1) % _ENTRIES if self._last[worker.id] < number else None
        return None

    def _entry(self, number: int) -> list[int]:
        at = (number - 1) % _ENTRIES
        return list(self._entries[at * _FIELDS : (at + 1) * _FIELDS])

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the memory, for spawned workers, which cannot share it."""
        if not self._spawns:
            self._lock, self._spawns = multiprocessing.get_context("spawn").Lock(), True
        return dict(self.__dict__)


def _word(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63
