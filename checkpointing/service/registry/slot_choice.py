"""Which of a rank's places in shared memory may be filled next: a pure rule over their states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class SlotState(Enum):
    """What a slot holds."""

    EMPTY = "empty"  # nothing whole: never filled, or being filled
    WAITING = "waiting"  # a whole snapshot that is not in the store yet
    WRITING = "writing"  # one that is on its way there
    DURABLE = "durable"  # one that is committed
    LOST = "lost"  # one that other ranks have not got, so that it can be no checkpoint


@dataclass(frozen=True)
class SlotStatus:
    state: SlotState = SlotState.EMPTY
    step: int = -1
    order: int = -1  # of arrival: a generation that went back in time has newer ones of lower steps


def choose(slots: Sequence[SlotStatus]) -> int | None:
    """The slot to fill next, by index; None if there is none now.

    The newest whole snapshot stays while the next one is copied, for only a copy that has ended
    can take its place; with one slot alone that cannot be had, and only a committed one goes. What
    is being written stays. A waiting snapshot is given up only for want of other slots, the oldest
    first.
    """
    whole = [slot.order for slot in slots if slot.state is not SlotState.EMPTY]
    newest = max(whole) if len(slots) > 1 and whole else None
    for wanted in (SlotState.EMPTY, SlotState.LOST, SlotState.DURABLE, SlotState.WAITING):
        if wanted is SlotState.WAITING and len(slots) == 1:
            return None
        may_go = [
            (slot.order, index)
            for index, slot in enumerate(slots)
            if slot.state is wanted and (wanted is SlotState.EMPTY or slot.order != newest)
        ]
        if may_go:
            return min(may_go)[1]
    return None
