"""When a step that was not finite counts as the same as one before."""

from __future__ import annotations

import pytest

from hpckit.run.events import Event
from hpckit.training.finite import was_seen


def told(step: int) -> Event:
    return Event(0.0, "not_finite", {"step": step})


STARTED = Event(0.0, "run_started", {})


@pytest.mark.parametrize(
    ("events", "is_seen"),
    [
        ([], False),
        ([STARTED, told(40)], True),
        ([STARTED, told(45)], True),
        ([STARTED, told(31)], True),
        ([STARTED, told(30)], False),
        ([STARTED, told(50)], False),
        ([STARTED, told(40), STARTED], False),
    ],
)
def test_the_same_step_since_a_person_has_started_the_run(
    events: list[Event], is_seen: bool
) -> None:
    assert was_seen(events, step=40, every=10) is is_seen
