"""Which step a follower takes, and when it looks again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.follower.step_choice import (
    JITTER,
    LONGEST_S,
    HeldStep,
    OfferedStep,
    Order,
    choose_step,
    current_line,
    next_look_s,
    went_back,
)

LINE = [OfferedStep(step, "a", f"a{step}", float(step)) for step in (10, 20, 30, 40)]
BACK = [OfferedStep(step, "b", f"b{step}", 100.0 + step) for step in (20, 25)]
AT_20 = HeldStep(20, "a", 20.0)


@pytest.mark.parametrize(
    ("held", "every", "order", "ignored", "taken"),
    [
        (None, 1, "newest", set(), 40),
        (None, 1, "each", set(), 40),
        (AT_20, 1, "newest", set(), 40),
        (AT_20, 1, "each", set(), 30),
        (AT_20, 11, "each", set(), 40),
        (AT_20, 20, "newest", set(), 40),
        (AT_20, 21, "newest", set(), None),
        (AT_20, 1, "newest", {"a40"}, 30),
        (AT_20, 1, "each", {"a30"}, 40),
        (AT_20, 1, "newest", {"a30", "a40"}, None),
        (HeldStep(40, "a", 40.0), 1, "newest", set(), None),
        (HeldStep(35, "a", 35.0), 1, "newest", set(), 40),  # it was pruned
        (HeldStep(50, "a", 50.0), 1, "newest", set(), None),  # it was pruned, and was the newest
    ],
)
def test_of_a_run_that_goes_forward(
    held: HeldStep | None, every: int, order: Order, ignored: set[str], taken: int | None
) -> None:
    found = choose_step(LINE, held, every=every, order=order, ignored=ignored)
    assert (found.step if found else None) == taken


@pytest.mark.parametrize(
    ("held", "order", "taken"),
    [
        (None, "newest", "b25"),
        (HeldStep(40, "a", 40.0), "newest", "b25"),
        (HeldStep(40, "a", 40.0), "each", "b20"),
        (HeldStep(20, "b", 120.0), "newest", "b25"),
        (HeldStep(25, "b", 125.0), "newest", None),  # and not step 40 of before
        (HeldStep(10, "a", 10.0), "each", "b20"),
    ],
)
def test_a_run_that_went_back_is_followed(
    held: HeldStep | None, order: Order, taken: str | None
) -> None:
    found = choose_step([*LINE, *BACK], held, order=order)
    assert (found.key if found else None) == taken


def test_a_run_that_began_again_is_followed_whatever_every_is() -> None:
    again = [OfferedStep(5, "c", "c5", 500.0)]
    found = choose_step(again, HeldStep(900, "a", 90.0), every=100)
    assert found == again[0]


def test_a_copy_of_an_older_step_supersedes_nothing() -> None:
    copy = OfferedStep(15, "d", "d15", 999.0, is_copy=True)
    assert not went_back(current_line([*LINE, copy]), HeldStep(40, "a", 40.0))
    found = choose_step([*LINE, copy], None)
    assert found is not None
    assert found.step == 40


@given(
    st.lists(
        st.builds(
            OfferedStep,
            st.integers(0, 9),
            st.sampled_from("abc"),
            st.uuids().map(str),
            st.floats(0, 9),
        )
    )
)
def test_the_line_is_what_no_later_session_was_below(offers: list[OfferedStep]) -> None:
    line = current_line(offers)
    expected = [
        one
        for one in offers
        if not any(
            o.created > one.created and o.step <= one.step and o.session != one.session
            for o in offers
        )
    ]
    assert sorted(line, key=lambda one: one.key) == sorted(expected, key=lambda one: one.key)


@given(st.lists(st.integers(0, 50), min_size=1, unique=True), st.integers(1, 9))
def test_each_takes_all_at_their_distance(steps: list[int], every: int) -> None:
    offers = [OfferedStep(step, "a", str(step), float(step)) for step in steps]
    held = HeldStep(-1, "a", -1.0)
    taken = []
    while (found := choose_step(offers, held, every=every, order="each")) is not None:
        taken.append(found.step)
        held = HeldStep(found.step, found.session, found.created)
    assert all(b - a >= every for a, b in zip([-1, *taken], taken, strict=False))
    skipped = set(steps) - set(taken)
    assert all(any(0 < step - one < every for one in [-1, *taken]) for step in skipped)


@pytest.mark.parametrize(
    ("interval_s", "failures", "wait_s"),
    [(5.0, 0, 5.0), (5.0, 2, 20.0), (5.0, 9, LONGEST_S), (300.0, 5, 300.0), (5.0, 10**9, 60.0)],
)
def test_the_wait_doubles_with_failures_up_to_a_limit(
    interval_s: float, failures: int, wait_s: float
) -> None:
    assert next_look_s(interval_s, failures, 0.5) == pytest.approx(wait_s)
    assert next_look_s(interval_s, failures, 0.0) == pytest.approx(wait_s * (1 - JITTER))
    assert next_look_s(interval_s, failures, 1.0) == pytest.approx(wait_s * (1 + JITTER))
