"""Detects workers of one node that ran out of memory, by their error or because the kernel killed
them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.agent.exit_report import WorkerError, errors_in
from hpckit.agent.hangs.hang_detection import GOING
from hpckit.agent.workers.oom_kill_count import oom_kills
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from hpckit.ipc.memory_kinds import MemoryKind

_LOST_CHILD = re.compile(
    r"DataLoader worker \(pid.*?\) (is killed by signal: Killed|exited unexpectedly)"
)


@dataclass(frozen=True)
class MemoryFailure:
    """A worker's end because memory ran out."""

    memory: MemoryKind
    step: int
    """Steps that the worker had finished."""
    attempt: int
    by_kernel: bool
    """Whether the kernel killed the worker, or one of its child processes."""


def memory_failure_of(
    slot: Heartbeat, error: WorkerError | None, has_killed: bool
) -> MemoryFailure | None:
    """Returns the memory failure of a worker that failed or is lost, or None if memory is not known
    to be the cause.

    Args:
        error: the error that the worker left.
        has_killed: whether the kernel killed a process because memory ran out, during the worker's
            life.
    """
    if error is not None and error.memory is not None:
        return MemoryFailure(error.memory, slot.step, slot.attempt, by_kernel=False)
    is_silent = error is None and slot.phase in GOING
    has_lost_child = error is not None and _LOST_CHILD.search(error.message) is not None
    if has_killed and (is_silent or has_lost_child):
        return MemoryFailure(MemoryKind.HOST, slot.step, slot.attempt, by_kernel=True)
    return None


def is_repeated(before: Iterable[MemoryFailure], now: MemoryFailure) -> bool:
    """Returns whether the previous attempt failed in the same way, perhaps on another rank, as the
    kernel chooses which process it kills."""
    last = (now.memory, now.step, now.attempt - 1)
    return any((failure.memory, failure.step, failure.attempt) == last for failure in before)


class MemoryExhaustion:
    """Tracks the memory failures of one generation's workers over their restarts."""

    def __init__(self, logs: Path, kills: Callable[[], int | None] = oom_kills) -> None:
        """
        Args:
            logs: the folder of the workers' errors.
            kills: as `oom_kills`.
        """
        self._logs, self._kills = logs, kills
        self._before = {0: kills()}  # by process; 0: a worker without a heartbeat so far
        self._judged: set[int] = set()
        self._known: list[MemoryFailure] = []
        self.is_hopeless = False
        """Whether two successive attempts had the same memory failure at the same step."""

    def look(self, slots: Sequence[Heartbeat], lost: Collection[int]) -> dict[int, MemoryFailure]:
        """Returns the new memory failures since the last call, by local rank.

        Args:
            lost: local ranks that are gone without an error.
        """
        found = {}
        for rank, slot in enumerate(slots):
            if slot.pid not in self._before:
                self._before[slot.pid] = self._kills()
            has_failed = slot.phase is WorkerPhase.FAILED or rank in lost
            if not has_failed or (slot.pid in self._judged and slot.pid):
                continue
            self._judged.add(slot.pid)
            failure = memory_failure_of(slot, self._error_of(slot), self._has_killed(slot.pid))
            if failure is None:
                continue
            found[rank] = failure
            self.is_hopeless |= is_repeated(self._known, failure)
            self._known.append(failure)
            if failure.by_kernel:  # the kernel did not kill its peers, which torchrun ends now
                self._before = dict.fromkeys(self._before, self._kills())
        return found

    def is_killed(self, attempt: int) -> bool:
        """Returns whether the kernel ended this attempt."""
        return any(failure.by_kernel and failure.attempt == attempt for failure in self._known)

    def _has_killed(self, pid: int) -> bool:
        before, now = self._before[pid], self._kills()
        return before is not None and now is not None and now > before

    def _error_of(self, slot: Heartbeat) -> WorkerError | None:
        return next((error for error in errors_in(self._logs) if error.pid == slot.pid), None)
