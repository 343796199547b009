"""What an agent concludes from its board: pure functions of the slots, before and now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hpckit.elastic.report import NodeExit
from hpckit.run.board import Phase, Request, Slot
from hpckit.run.spec import HangSpec

GOING = (Phase.STARTING, Phase.RESUMED, Phase.TRAINING, Phase.SAVING, Phase.VALIDATING)
"""Of a worker that has more to say."""


def lost_workers(slots: Sequence[Slot], alive: Callable[[int], bool]) -> dict[int, Slot]:
    """Local ranks whose process is gone though they never said that they were through."""
    return {
        rank: slot
        for rank, slot in enumerate(slots)
        if slot.pid and slot.phase in GOING and not alive(slot.pid)
    }


def silent_workers(slots: Sequence[Slot]) -> list[int]:
    """Local ranks that never said that they were through, those that never said a word too."""
    return [rank for rank, slot in enumerate(slots) if slot.phase in GOING]


def hung_workers(slots: Sequence[Slot], now_s: float, limits: HangSpec) -> dict[int, Slot]:
    """Local ranks that have said nothing for longer than what they are at may take. One that never
    said a word is torchrun's affair.

    Args:
        now_s: CLOCK_MONOTONIC seconds.
    """
    limit_s = {
        Phase.STARTING: limits.start_s,
        Phase.RESUMED: limits.first_step_s,
        Phase.TRAINING: limits.step_s,
        Phase.VALIDATING: limits.validate_s,
        Phase.SAVING: limits.save_s,
    }
    return {
        rank: slot
        for rank, slot in enumerate(slots)
        if slot.pid
        and (most_s := limit_s.get(slot.phase)) is not None
        and now_s - slot.beat > most_s
    }


def steps_finished(slots: Sequence[Slot]) -> int:
    """Steps that all workers of the node have finished."""
    return min((slot.step for slot in slots), default=0)


def attempts(slots: Sequence[Slot]) -> int:
    """Restarts in place so far."""
    return max((slot.attempt for slot in slots), default=0)


def refused(slots: Sequence[Slot]) -> bool:
    """Whether a worker said that no further attempt can help."""
    return any(slot.phase is Phase.REFUSED for slot in slots)


def failed(slots: Sequence[Slot]) -> bool:
    """Whether a worker said that it failed."""
    return any(slot.phase is Phase.FAILED for slot in slots)


def node_exit(slots: Sequence[Slot], returncode: int, request: Request) -> NodeExit:
    """How the node ended, once torchrun has ended by itself with `returncode`."""
    phases = {slot.phase for slot in slots}
    if Phase.REFUSED in phases:
        return NodeExit.REFUSED
    if returncode == 0 and phases == {Phase.DONE}:
        return NodeExit.DONE
    if returncode == 0 and request is not Request.NONE and phases <= {Phase.DONE, Phase.LEFT}:
        return NodeExit.LEFT
    return NodeExit.FAILED
