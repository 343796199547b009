"""Conclusions from the heartbeat table about the state of workers. Pure functions of its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hpckit.agent.exit_report import NodeExit
from hpckit.config.spec import HangSpec
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase, WorkerRequest

GOING = (
    WorkerPhase.STARTING,
    WorkerPhase.RESUMED,
    WorkerPhase.TRAINING,
    WorkerPhase.SAVING,
    WorkerPhase.VALIDATING,
    WorkerPhase.RUNNING,
)
"""Phases of a worker that has not ended."""
_WITHOUT_END = {WorkerPhase.RUNNING, WorkerPhase.REPLACED}
"""Phases of a program whose exit status alone says how it ended."""


def lost_workers(slots: Sequence[Heartbeat], alive: Callable[[int], bool]) -> dict[int, Heartbeat]:
    """Returns the local ranks whose process is gone though their phase is not a final one."""
    return {
        rank: slot
        for rank, slot in enumerate(slots)
        if slot.pid and slot.phase in GOING and not alive(slot.pid)
    }


def confirmed_lost(
    lost: Mapping[int, Heartbeat], later: Sequence[Heartbeat]
) -> dict[int, Heartbeat]:
    """Returns the workers in `lost` without those that had written a final phase and ended after
    their heartbeats were read. `later` are heartbeats that were read after the processes were found
    to be gone."""
    return {
        rank: slot
        for rank, slot in lost.items()
        if later[rank].pid != slot.pid or later[rank].phase in GOING
    }


def silent_workers(slots: Sequence[Heartbeat]) -> list[int]:
    """Returns the local ranks whose phase is not a final one, including those that never wrote a
    heartbeat."""
    return [rank for rank, slot in enumerate(slots) if slot.phase in GOING]


def hung_workers(
    slots: Sequence[Heartbeat], now_s: float, limits: HangSpec
) -> dict[int, Heartbeat]:
    """Returns the local ranks without a heartbeat for longer than their phase may take. Workers
    that never wrote one are left to torchrun. A program that does not report its steps itself is
    hung at the deadline of its worker, if it has one.

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
        and (
            0 < slot.deadline < now_s
            if slot.phase is WorkerPhase.RUNNING
            else (most_s := limit_s.get(slot.phase)) is not None and now_s - slot.beat > most_s
        )
    }


def peers_of_programs(
    slots: Sequence[Heartbeat], hung: Mapping[int, Heartbeat]
) -> dict[int, Heartbeat]:
    """Returns the local ranks whose stacks may show why the ranks in `hung` do: if rank 0 of a
    program hangs, it may wait for any other rank, which has no deadline of its own."""
    if all(slot.phase is not WorkerPhase.RUNNING for slot in hung.values()):
        return {}
    return {
        rank: slot
        for rank, slot in enumerate(slots)
        if slot.pid and slot.phase is WorkerPhase.RUNNING and rank not in hung
    }


def steps_finished(slots: Sequence[Heartbeat], *, is_of_rank_0: bool = False) -> int:
    """Returns the number of steps that all workers of the node have finished.

    Args:
        is_of_rank_0: whether only the steps of rank 0 may be known.
    """
    choose = max if is_of_rank_0 else min
    return choose((slot.step for slot in slots), default=0)


def attempts(slots: Sequence[Heartbeat]) -> int:
    """Returns the number of restarts in place so far."""
    return max((slot.attempt for slot in slots), default=0)


def refused(slots: Sequence[Heartbeat]) -> bool:
    """Returns whether a worker reported that no further attempt can help."""
    return any(slot.phase is WorkerPhase.REFUSED for slot in slots)


def failed(slots: Sequence[Heartbeat]) -> bool:
    """Returns whether a worker reported that it failed."""
    return any(slot.phase is WorkerPhase.FAILED for slot in slots)


def node_exit(slots: Sequence[Heartbeat], returncode: int, request: WorkerRequest) -> NodeExit:
    """Returns how the node ended, after torchrun ended by itself with `returncode`. A program that
    has put another one in its place has reported no end."""
    unreported = WorkerPhase.DONE if request is WorkerRequest.NONE else WorkerPhase.LEFT
    phases = {slot.phase for slot in slots}
    if returncode == 0 and phases & _WITHOUT_END:
        phases = phases - _WITHOUT_END | {unreported}
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
