"""A thinned series has as few points as a picture shows, and every peak."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.report.page.series_downsampling import downsample
from tests.effort import times

VALUES = st.floats(width=32) | st.just(math.nan) | st.just(math.inf)


@settings(max_examples=times(25))
@given(gaps=st.lists(st.integers(0, 9), max_size=200), data=st.data(), columns=st.integers(1, 12))
def test_peaks_ends_and_order_are_kept(gaps: list[int], data: st.DataObject, columns: int) -> None:
    steps = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    points = [(step, data.draw(VALUES)) for step in steps]
    found = downsample(points, columns)
    assert [step for step, _ in found] == sorted(step for step, _ in found)
    given_values = [value for _, value in points if math.isfinite(value)]
    values = [value for _, value in found if value is not None]
    assert set(values) <= set(given_values)
    if given_values:
        assert (min(values), max(values)) == (min(given_values), max(given_values))
    assert (None in [value for _, value in found]) == (len(given_values) < len(points))
    if len(points) > 4 * columns:
        assert len(found) <= 5 * columns


def test_a_single_spike_among_many_is_seen() -> None:
    points = [(step, 1.0) for step in range(50_000)]
    points[23_457] = (23_457, 99.0)
    found = downsample(points)
    assert (23_457, 99.0) in found
    assert (found[0][0], found[-1][0]) == (0, 49_999)
    assert len(found) < 2500


def test_a_short_series_is_left_as_it_is() -> None:
    assert downsample([(1, 2.0), (2, math.nan), (3, 4.0)]) == ((1, 2.0), (2, None), (3, 4.0))
    assert downsample([]) == ()
