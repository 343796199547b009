"""Smoothed curves follow what they smooth, and one value does not spoil the others."""

from __future__ import annotations

import math

import pytest

from hpckit.report.page.curve_values import curve_of, smooth


def numbered(*values: float) -> list[tuple[int, float]]:
    return list(enumerate(values, 1))


def test_the_middle_is_around_each_value_and_begins_with_the_first() -> None:
    rising = numbered(*(float(n) for n in range(100)))
    smoothed = smooth(rising)
    assert [step for step, _ in smoothed] == [step for step, _ in rising]
    assert smoothed[0] == (1, 0.0)
    assert [value for _, value in smoothed[:90]] == pytest.approx(list(range(90)))
    assert smoothed[-1][1] == 96.75  # of the last ones


def test_few_values_are_not_smoothed() -> None:
    assert smooth(numbered(*[1.0] * 19)) == []


def test_gaps_stay_and_a_spike_leaves_no_trace() -> None:
    values = [2.0] * 400
    values[100], values[200] = math.nan, 1e308
    smoothed = dict(smooth(numbered(*values)))
    assert math.isnan(smoothed.pop(101))
    assert set(smoothed.values()) == {2.0}
    assert curve_of("loss", numbered(*values)).odd == 1


def test_the_sum_of_values_may_be_too_large_a_number() -> None:
    assert [value for _, value in smooth(numbered(*[7e307] * 30))] == pytest.approx([7e307] * 30)


def test_of_many_values_as_many_remain_as_can_be_seen() -> None:
    values = numbered(*(float(n % 2) for n in range(100_000)))
    smoothed = smooth(values)
    assert len(smoothed) == 1000
    assert smoothed[-1] == (100_000, 0.5)
    half = smooth(numbered(*[math.nan] * 5000, *[1.0] * 5000))
    assert [math.isnan(value) for _, value in half] == [True] * 500 + [False] * 500
