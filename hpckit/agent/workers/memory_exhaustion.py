"""Workers of one node that ran out of memory: by an error that says so, or killed by the kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.agent.exit_report import WorkerError, errors_in
from hpckit.agent.hangs.hang_detection import GOING
from hpckit.agent.workers.oom_kills import oom_kills
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from hpckit.ipc.memory_kinds import MemoryKind

_LOST_CHILD = re.compile(
    r"DataLoader worker \(pid.*?\) (is killed by signal: Killed|exited unexpectedly)"
)


@dataclass(frozen=True)
class MemoryFailure:
    """What one worker ended of."""

    memory: MemoryKind
    step: int
    """Steps that it had finished."""
    attempt: int
    by_kernel: bool
    """It, or a process of its own, was killed."""


def memory_failure_of(
    slot: Heartbeat, error: WorkerError | None, has_killed: bool
) -> MemoryFailure | None:
    """What a worker that failed, or is lost, was short of; None: nothing that is known of.

    Args:
        error: that it has left behind.
        has_killed: the kernel has killed for want of memory during its life.
    """
    if error is not None and error.memory is not None:
        return MemoryFailure(error.memory, slot.step, slot.attempt, by_kernel=False)
    is_silent = error is None and slot.phase in GOING
    has_lost_child = error is not None and _LOST_CHILD.search(error.message) is not None
    if has_killed and (is_silent or has_lost_child):
        return MemoryFailure(MemoryKind.HOST, slot.step, slot.attempt, by_kernel=True)
    return None


def is_repeated(before: Iterable[MemoryFailure], now: MemoryFailure) -> bool:
    """Whether the attempt before came to the same: on another rank, perhaps, as the kernel chooses
    whom it kills."""
    last = (now.memory, now.step, now.attempt - 1)
    return any((lack.memory, lack.step, lack.attempt) == last for lack in before)


class MemoryExhaustion:
    """What the workers of one generation were short of, as they fail and are started again."""

    def __init__(self, logs: Path, kills: Callable[[], int | None] = oom_kills) -> None:
        """
        Args:
            logs: where the workers' errors are.
            kills: as of `oom_kills`.
        """
        self._logs, self._kills = logs, kills
        self._before = {0: kills()}  # by process; 0: one that has not said anything yet
        self._judged: set[int] = set()
        self._known: list[MemoryFailure] = []
        self.is_hopeless = False
        """Two attempts in a row were short of the same at the same step."""

    def look(self, slots: Sequence[Heartbeat], lost: Collection[int]) -> dict[int, MemoryFailure]:
        """What has come to light since the last look, by local rank.

        Args:
            lost: local ranks that are gone without a word.
        """
        found = {}
        for rank, slot in enumerate(slots):
            if slot.pid not in self._before:
                self._before[slot.pid] = self._kills()
            has_failed = slot.phase is WorkerPhase.FAILED or rank in lost
            if not has_failed or (slot.pid in self._judged and slot.pid):
                continue
            self._judged.add(slot.pid)
            lack = memory_failure_of(slot, self._error_of(slot), self._has_killed(slot.pid))
            if lack is None:
                continue
            found[rank] = lack
            self.is_hopeless |= is_repeated(self._known, lack)
            self._known.append(lack)
            if lack.by_kernel:  # its peers, which torchrun ends now, were not killed for it
                self._before = dict.fromkeys(self._before, self._kills())
        return found

    def is_killed(self, attempt: int) -> bool:
        """Whether the kernel ended this attempt."""
        return any(lack.by_kernel and lack.attempt == attempt for lack in self._known)

    def _has_killed(self, pid: int) -> bool:
        before, now = self._before[pid], self._kills()
        return before is not None and now is not None and now > before

    def _error_of(self, slot: Heartbeat) -> WorkerError | None:
        return next((error for error in errors_in(self._logs) if error.pid == slot.pid), None)
