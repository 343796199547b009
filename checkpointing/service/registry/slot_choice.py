"""Chooses which slot of a rank may be filled next: a pure rule over the states of the slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class SlotState(Enum):
    """What a slot holds."""

    EMPTY = "empty"  # nothing whole: never filled, or being filled
    WAITING = "waiting"  # a whole snapshot that is not in the store yet
    WRITING = "writing"  # a snapshot that is being written to the store
    DURABLE = "durable"  # a committed snapshot
    LOST = "lost"  # a snapshot that other ranks do not have, so that it cannot become a checkpoint


@dataclass(frozen=True)
class SlotStatus:
    state: SlotState = SlotState.EMPTY
    step: int = -1
    # of arrival: a generation that went back in time has newer snapshots of lower steps
    order: int = -1


def choose_next_slot(slots: Sequence[SlotStatus]) -> int | None:
    """Return the index of the slot to fill next; None if there is none now.

    The newest whole snapshot stays while the next one is copied, because it can be replaced only by
    a copy that is complete. With a single slot that is impossible: then only a committed snapshot
    is overwritten. A snapshot that is being written stays. A waiting one is given up only if there
    is no other slot, the oldest first.
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
