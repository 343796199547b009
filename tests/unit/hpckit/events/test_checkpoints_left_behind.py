"""Which checkpoints a run has left behind, by its events."""

from __future__ import annotations

from typing import Any

from hpckit.events.checkpoints_left_behind import checkpoints_left_behind
from hpckit.events.schema import Event, event_of

SPIKE: dict[str, Any] = {
    "first_step": 30,
    "step": 30,
    "what": "",
    "first_position": 0,
    "end_position": 4,
}
WRONG: dict[str, Any] = {
    "step": 30,
    "good_step": 10,
    "ranks": [0],
    "hosts": [],
    "nodes": [],
    "tensors": [],
}


def events_of(*happened: str | int) -> list[Event]:
    """Events: a number is the step from which training starts, `c20` the commit and `r20` the
    rejection of the checkpoint of step 20, `d20` that it is damaged."""
    found: list[Event] = []
    fields: dict[str, Any]
    for time, one in enumerate(happened):
        if isinstance(one, int):
            fields = {"step": one, "generation": 1, "world_size": 1, "samples": 9}
            found.append(event_of(time, "training_started", fields))
        elif one == "spike":
            found.append(event_of(time, "spike", {**SPIKE, "is_left_out": True}))
        elif one == "last spike":
            found.append(event_of(time, "spike", {**SPIKE, "is_left_out": False}))
        elif one == "wrong":
            how = {"what": "", "is_persistent": False, "is_excluded": False}
            found.append(event_of(time, "wrong_computation", {**WRONG, **how}))
        elif one[0] == "c":
            fields = {"step": int(one[1:]), "id": one[1:], "store": "s"}
            found.append(event_of(time, "checkpoint_committed", fields))
        else:
            why = {"reason": "why", "is_rejected": one[0] == "r"}
            fields = {"step": int(one[1:]), "id": one[1:], **why}
            found.append(event_of(time, "checkpoint_skipped", fields))
    return found


def left(*happened: str | int) -> set[str]:
    return set(checkpoints_left_behind(events_of(*happened)))


def test_what_is_newer_than_the_state_after_a_rollback_is_left_behind() -> None:
    assert left(0, "c10", "c20", "c25", "spike", 10) == {"20", "25"}
    assert left(0, "c10", "c20", "wrong", 10) == {"20"}
    found = checkpoints_left_behind(events_of(0, "c10", "c20", "spike", 10))
    assert found == {"20": "the run went back to step 10, before it, after the spike at step 30"}


def test_ordinary_restarts_leave_nothing_behind() -> None:
    assert left(0, "c10", "c20", 10) == set(), "20 was not reached by all ranks, or is damaged"
    assert left(0, "c10", "c20", "last spike", 10) == set()
    assert left(0, "c10", "spike", 5, "c15", 10, "c20", 10) == {"10"}


def test_what_was_rejected_is_not_loaded_again() -> None:
    assert left(0, "c10", "spike", "r20", 10) == {"20"}, "its commit was not recorded"
    assert left(0, "c10", "spike", 10, "r20", 15) == {"20"}
    assert left(0, "c10", "d20", 10) == set(), "it may be repaired"
