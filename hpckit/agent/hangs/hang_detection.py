"""What an agent concludes from its board: pure functions of the slots, before and now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpckit.agent.exit_report import NodeExit
from hpckit.config.spec import HangSpec
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase, WorkerRequest

GOING = (
    WorkerPhase.STARTING,
    WorkerPhase.RESUMED,
    WorkerPhase.TRAINING,
    WorkerPhase.SAVING,
    WorkerPhase.VALIDATING,
)
"""Of a worker that has more to say."""


def lost_workers(slots: Sequence[Heartbeat], alive: Callable[[int], bool]) -> dict[int, Heartbeat]:
    """Local ranks whose process is gone though they never said that they were through."""
    return {
        rank: slot
        for rank, slot in enumerate(slots)
        if slot.pid and slot.phase in GOING and not alive(slot.pid)
    }


def silent_workers(slots: Sequence[Heartbeat]) -> list[int]:
    """Local ranks that never said that they were through, those that never said a word too."""
    return [rank for rank, slot in enumerate(slots) if slot.phase in GOING]


def hung_workers(
    slots: Sequence[Heartbeat], now_s: float, limits: HangSpec
) -> dict[int, Heartbeat]:
    """Local ranks that have said nothing for longer than what they are at may take. One that never
    said a word is torchrun's affair.

    Args:
        now_s: CLOCK_MONOTONIC seconds.
    """
    limit_s = {
        WorkerPhase.STARTING: limits.start_s,
        WorkerPhase.RESUMED: limits.first_step_s,
        WorkerPhase.TRAINING: limits.step_s,
        WorkerPhase.VALIDATING: limits.validate_s,
        WorkerPhase.SAVING: limits.save_s,
    }
    return {
        rank: slot
        for rank, slot in enumerate(slots)
        if slot.pid
        and (most_s := limit_s.get(slot.phase)) is not None
        and now_s - slot.beat > most_s
    }


def steps_finished(slots: Sequence[Heartbeat]) -> int:
    """Steps that all workers of the node have finished."""
    return min((slot.step for slot in slots), default=0)


def attempts(slots: Sequence[Heartbeat]) -> int:
    """Restarts in place so far."""
    return max((slot.attempt for slot in slots), default=0)


def refused(slots: Sequence[Heartbeat]) -> bool:
    """Whether a worker said that no further attempt can help."""
    return any(slot.phase is WorkerPhase.REFUSED for slot in slots)


def failed(slots: Sequence[Heartbeat]) -> bool:
    """Whether a worker said that it failed."""
    return any(slot.phase is WorkerPhase.FAILED for slot in slots)


def node_exit(slots: Sequence[Heartbeat], returncode: int, request: WorkerRequest) -> NodeExit:
    """How the node ended, once torchrun has ended by itself with `returncode`."""
    phases = {slot.phase for slot in slots}
    if WorkerPhase.REFUSED in phases:
        return NodeExit.REFUSED
    if returncode == 0 and phases == {WorkerPhase.DONE}:
        return NodeExit.DONE
    if (
        returncode == 0
        and request is not WorkerRequest.NONE
        and phases <= {WorkerPhase.DONE, WorkerPhase.LEFT}
    ):
        return NodeExit.LEFT
    return NodeExit.FAILED
