"""How many alerts a target gets."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.alerts.alert_limits import AlertLimits, SentAlerts, sent_of_record
from hpckit.alerts.alert_occasions import AlertOccasion
from hpckit.config.spec import AlertKind
from hpckit.report.run_state import RunState

LIMITS = AlertLimits(repeat_s=600.0, max_per_hour=3)


def about(key: str, kind: AlertKind = "degraded") -> AlertOccasion:
    return AlertOccasion(kind, key, "headline", "what", 0.0, RunState.RUNNING)


def sent(*alerts: tuple[float, str]) -> SentAlerts:
    state = SentAlerts()
    for time, key in alerts:
        state = state.after(about(key), time, LIMITS)
    return state


def test_the_same_alert_is_withheld_for_a_while() -> None:
    state = sent((0.0, "a"))
    assert not state.may_send(about("a"), 599.0, LIMITS)
    assert state.may_send(about("b"), 599.0, LIMITS)
    assert state.may_send(about("a"), 600.0, LIMITS)


def test_alerts_per_hour_are_limited_except_of_verdicts() -> None:
    state = sent((0.0, "a"), (1.0, "b"), (2.0, "c"))
    assert not state.may_send(about("d"), 3.0, LIMITS)
    assert state.may_send(about("d", "verdict"), 3.0, LIMITS)
    assert state.may_send(about("d", "done"), 3.0, LIMITS)
    assert state.may_send(about("d"), 3600.5, LIMITS)


def test_a_clock_that_was_set_back_does_not_silence_a_target() -> None:
    assert sent((1e9, "a")).may_send(about("a"), 5.0, LIMITS)


def test_what_was_withheld_is_counted_until_the_next_alert() -> None:
    state = sent((0.0, "a")).after_withheld().after_withheld()
    assert state.withheld == 2
    assert state.after(about("b"), 1.0, LIMITS).withheld == 0


@given(st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from("abcdefgh")), max_size=60))
def test_a_flapping_run_sends_few(offered: list[tuple[int, str]]) -> None:
    state, times = SentAlerts(), []
    for time, key in sorted(offered):
        if state.may_send(about(key), time, LIMITS):
            state = state.after(about(key), time, LIMITS)
            times.append(time)
    for time in times:
        assert sum(time - 3600 < other <= time for other in times) <= LIMITS.max_per_hour
    assert sent_of_record(json.loads(json.dumps(state.record()))) == state


@pytest.mark.parametrize(
    "value", [None, True, -1, "text", [], [1], [[1, 2]], [["a", 1.0]], [[1.0, "a", 2]], {"sent": 1}]
)
def test_a_damaged_record_is_an_empty_one(value: object) -> None:
    for record in (value, {"sent": value, "withheld": value}):
        assert isinstance(sent_of_record(record), SentAlerts)
