"""Programs that stop to write steps are told from those that write them rarely."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpckit.ipc.program_watch import LEARNED_INTERVALS, ProgramWatch


def watched(
    interval_s: float,
    steps: int,
    silence_s: float | None = 100.0,
    step_s: float | None = 1000.0,
) -> ProgramWatch:
    """A watch that has seen so many steps, the last one at second 0."""
    watch = ProgramWatch(silence_s, step_s)
    for step in range(steps):
        watch.add_step(step, (step + 1 - steps) * interval_s)
    return watch


def test_nothing_is_watched_before_the_interval_is_known() -> None:
    assert watched(1, LEARNED_INTERVALS).deadline() is None
    assert watched(1, LEARNED_INTERVALS + 1).deadline() == 100
    assert watched(1, 9, silence_s=None).deadline() is None


def test_a_step_that_is_written_again_is_no_new_one() -> None:
    watch = watched(1, LEARNED_INTERVALS)
    watch.add_step(LEARNED_INTERVALS - 1, 50.0)
    assert watch.deadline() is None


def test_rare_steps_have_three_times_their_interval() -> None:
    assert watched(500, 9).deadline() == 1500


def test_other_output_gives_time_but_not_for_ever() -> None:
    watch = watched(1, 9)
    watch.add_output(80.0)
    assert watch.deadline() == 180
    watch.add_output(999.0)
    assert watch.deadline() == 1000
    forgiving = watched(1, 9, step_s=None)
    forgiving.add_output(5000.0)
    assert forgiving.deadline() == 5100


@given(st.lists(st.floats(0.001, 1e5), min_size=LEARNED_INTERVALS, max_size=20))
def test_intervals_that_were_seen_are_never_hangs(intervals: list[float]) -> None:
    watch, now = ProgramWatch(100.0, 1000.0), 0.0
    watch.add_step(0, now)
    for step, interval in enumerate(intervals, 1):
        now += interval
        watch.add_step(step, now)
    deadline = watch.deadline()
    assert deadline is not None
    assert deadline >= now + max(100.0, *intervals)
