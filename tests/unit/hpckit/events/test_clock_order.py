"""Events are in the order in which they came about, whatever clock they were told by."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpckit.events.clock_order import LATE_S, in_order
from hpckit.events.event_log import Event
from hpckit.events.schema import event_of

HOUR_S = 3600.0


def written(*times: float) -> list[Event]:
    return [event_of(time, str(number), {"n": number}) for number, time in enumerate(times)]


def order(events: list[Event]) -> list[int]:
    return [event["n"] for event in in_order(events)]


@given(st.lists(st.floats(0, LATE_S / 2), max_size=50))
def test_by_time_where_nobody_is_far_behind(times: list[float]) -> None:
    events = written(*times)
    assert in_order(events) == sorted(events, key=lambda event: event.time)


def test_a_rank_that_was_frozen_tells_of_its_steps_late() -> None:
    assert order(written(1000, 2000, 1100, 1200, 2001)) == [0, 2, 3, 1, 4]


def test_a_wait_of_days_is_one() -> None:
    events = written(0, 1, 200 * HOUR_S, 200 * HOUR_S + 1)
    assert in_order(events) == events


@given(
    st.lists(
        st.tuples(st.floats(0.1, 60), st.integers(-9, 9).map(lambda hours: hours * HOUR_S)),
        min_size=1,
        max_size=40,
    )
)
def test_a_clock_that_is_set_changes_no_order(steps: list[tuple[float, float]]) -> None:
    """Each event is told at a time by the clock as it stands then."""
    now, set_to, times = 1e9, 0.0, []
    for number, (pause, hours) in enumerate(steps):
        now += pause
        set_to = hours if number % 5 == 4 else set_to
        times.append(now + set_to)
    assert order(written(*times)) == list(range(len(times)))


def test_two_clocks_that_are_hours_apart_agree_on_the_order_and_on_durations() -> None:
    now = [10.0 * n for n in range(40)]
    events = written(*(t - (5 * HOUR_S if n % 3 == 1 else 0) for n, t in enumerate(now)))
    found = in_order(events)
    assert [event["n"] for event in found] == list(range(40))
    assert found[-1].time - found[0].time <= 390 + 10
