"""Who is called slow, and when: never for noise, never by how many ranks there are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.trainer.timing.stragglers import IN_A_ROW, MATTERS, Stragglers, slow_ranks

alike = st.lists(st.floats(1.0, 1.0 + MATTERS - 0.001), min_size=1, max_size=64)


@given(alike)
def test_ranks_that_hardly_differ_are_alike(own_s: list[float]) -> None:
    assert slow_ranks(own_s, [0] * len(own_s)) == {}


@given(alike, st.floats(1.5, 100.0), st.data())
def test_one_that_is_slow_is_found_among_three_or_more(
    own_s: list[float], factor: float, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, len(own_s)))
    found = slow_ranks([*own_s[:rank], factor, *own_s[rank:]], [0] * (len(own_s) + 1))
    assert [*found] == ([rank] if len(own_s) >= 2 else [])
    for one in found.values():
        assert one.rank == rank
        assert one.excess >= MATTERS


def test_ranks_that_are_all_over_the_place_have_no_outlier() -> None:
    assert slow_ranks([1.0, 1.5, 2.0, 2.5, 3.0], [0] * 5) == {}


def test_a_rank_is_compared_with_those_that_have_the_same_work() -> None:
    own_s = [1.0, 1.0, 1.0, 2.0, 2.0, 3.0]
    assert [*slow_ranks(own_s, [0, 0, 0, 1, 1, 1])] == [5]


def test_who_could_not_be_measured_is_left_out() -> None:
    assert [*slow_ranks([1.0, math.nan, 1.0, 2.0], [0] * 4)] == [3]
    assert slow_ranks([1.0, math.nan, 2.0], [0] * 3) == {}


def test_the_numbers_that_are_told() -> None:
    (one,) = slow_ranks([1.0, 1.1, 0.9, 2.0], [0] * 4).values()
    assert one.excess == pytest.approx(2.0 / 1.05 - 1)
    assert one.z == pytest.approx((2.0 - 1.05) / (1.4826 * 0.1))


def test_only_who_is_slow_in_a_row_is_told_and_taken_back() -> None:
    known = Stragglers()
    slow = slow_ranks([1.0, 1.0, 2.0], [0] * 3)
    for _ in range(IN_A_ROW - 1):
        assert known.judge(slow) == ([], [])
    assert known.judge({}) == ([], []), "a row is broken"
    for _ in range(IN_A_ROW - 1):
        assert known.judge(slow) == ([], [])
    assert known.judge(slow) == ([slow[2]], [])
    assert known.judge(slow) == ([], []), "told already"
    for _ in range(IN_A_ROW - 1):
        assert known.judge({}) == ([], [])
    assert known.judge({}) == ([], [2])
    assert known.judge({}) == ([], [])
    assert known.known == set()
