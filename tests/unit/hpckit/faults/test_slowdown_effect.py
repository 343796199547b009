"""What a slowdown has cost the job."""

from __future__ import annotations

from itertools import accumulate

from hpckit.events.schema import Event, event_of
from hpckit.faults.slowdown_effect import SlowdownEffect, slowdown_effect


def steps(*seconds: float) -> list[Event]:
    return [
        event_of(time, "step", {"generation": 1, "step": step, "step_s": each})
        for step, (time, each) in enumerate(zip(accumulate(seconds), seconds, strict=True))
    ]


def test_medians_are_compared_over_as_many_seconds_before() -> None:
    effect = slowdown_effect(steps(*[9.0] * 3, *[1.0] * 6, 1.2, 1.3, 1.2, 1.25, 1.2), 6.1)
    assert effect == SlowdownEffect(1.0, 1.225, 4)
    assert "(+22.5 %" in str(effect)


def test_nothing_is_said_without_records() -> None:
    assert slowdown_effect(steps(), 10.0) is None
    assert slowdown_effect(steps(1.0, 1.0, 1.0), 10.0) is None
    assert slowdown_effect(steps(20.0, 20.0), 10.0) is None
