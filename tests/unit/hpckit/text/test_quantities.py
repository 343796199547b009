"""Bytes and rates in words: the unit is that of the magnitude, and no rate is shown as nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.text.quantities import decimal, speed, took

POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5}


@pytest.mark.parametrize(
    ("total", "seconds", "told"),
    [
        (0, 1.0, ""),
        (500, 0.0, ""),
        (500, 0.0009, ""),
        (500, 1.0, "500 B/s"),
        (2_070_000, 0.05, "41.4 MB/s"),
        (4_000_000_000, 2.0, "2 GB/s"),
        (999_600, 1.0, "1 MB/s"),
        (1, 8.0, "0.125 B/s"),
    ],
)
def test_speed(total: float, seconds: float, told: str) -> None:
    assert speed(total, seconds) == told


@given(st.floats(1, 1e17))
def test_three_digits_are_right(n: float) -> None:
    match = re.fullmatch(r"([\d.]+) ([kMGTP]?)B", decimal(n))
    assert match
    assert float(match[1]) * 1000 ** POWERS[match[2]] == pytest.approx(n, rel=5.1e-3)
    assert 1 <= float(match[1]) < 1000


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(123.44, "123.4 s"), (1.0, "1.0 s"), (0.034, "0.034 s")],
)
def test_took(seconds: float, told: str) -> None:
    assert took(seconds) == told
