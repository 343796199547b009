"""Curves over steps, from the records of a run: with gaps where a value is not finite, smoothed,
and with as many points as a plot can show. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from hpckit.events.schema import Event, StepLogged
from hpckit.report.page.series_downsampling import Point, downsample

SPEEDS = (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s"), ("step_s", "s per step"))
"""The measures of speed and their units, the best first."""
_FEWEST = 20
"""Number of records from which on a curve is smoothed."""
_MOST = 1000
"""Number of values that are smoothed."""
_NARROWEST = 3
_WIDE = 60
"""The median at a value is of one part in `_WIDE` of all values to either side, and of at least
`_NARROWEST`."""

Values = Sequence[tuple[int, float]]
"""(step, value), by ascending step; a value may be infinite or NaN."""


@dataclass(frozen=True)
class Curve:
    """A value over steps, with as many points as a plot can show."""

    unit: str
    points: tuple[Point, ...]
    records: int
    """Number of records that it was made from."""
    odd: int
    """Number of records that are not finite."""


def values_of(records: Iterable[tuple[int, Event]], name: str) -> list[tuple[int, float]]:
    """Return the value of the field in each record that has it."""
    return [(step, value) for step, event in records if (value := event.get(name)) is not None]


def curve_of(unit: str, values: Values) -> Curve:
    """Return the curve of these values."""
    odd = sum(not math.isfinite(value) for _, value in values)
    return Curve(unit, downsample(values), len(values), odd)


def speed_of(records: Sequence[tuple[int, StepLogged]]) -> Curve:
    """Return the speed in the first unit of `SPEEDS` that any record has."""
    for name, unit in SPEEDS:
        if values := values_of(records, name):
            return curve_of(unit, values)
    return curve_of(SPEEDS[-1][1], [])


def smooth(values: Values) -> list[tuple[int, float]]:
    """Return the median around each value, smoothed once more by a mean, without values that are
    not finite; in their place it has a gap. So a spike of few steps leaves no trace. Near the first
    value, as many count on either side, so that a steep begin is followed. Many values are joined
    to `_MOST` ones first. Empty: there are too few values."""
    joined = _joined(values)
    finite = [value for _, value in joined if math.isfinite(value)]
    if len(finite) < _FEWEST:
        return []
    half = max(_NARROWEST, len(finite) // _WIDE)
    smoothed = iter(_around(_around(finite, half, median), half, _mean))
    return [(step, next(smoothed) if math.isfinite(value) else math.nan) for step, value in joined]


def _joined(values: Values) -> Values:
    """Return the medians of parts of the values; NaN where a part has no finite one."""
    size = -(-len(values) // _MOST)
    if size <= 1:
        return values
    parts = (values[at : at + size] for at in range(0, len(values), size))
    return [(part[-1][0], _finite_median([value for _, value in part])) for part in parts]


def _finite_median(values: Iterable[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return median(finite) if finite else math.nan


def _mean(values: Sequence[float]) -> float:
    try:
        return fmean(values)
    except OverflowError:  # of their sum
        return sum(value / len(values) for value in values)


def _around(
    values: Sequence[float], half: int, of: Callable[[Sequence[float]], float]
) -> list[float]:
    last = len(values) - 1
    return [
        of(values[at - min(half, at) : min(at + min(half, at), last) + 1])
        for at in range(len(values))
    ]
