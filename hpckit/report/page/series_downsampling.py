"""Downsampling of a long series to as many points as a plot can show, keeping all peaks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

COLUMNS = 500
"""Number of columns into which the steps of a curve are divided; about as many as it has pixels."""
_A_COLUMN = 4  # points at most: first, lowest, highest, last

Point = tuple[int, float | None]
"""A step and its recorded value; None: not finite, and the curve has a gap there."""


def downsample(points: Sequence[tuple[int, float]], columns: int = COLUMNS) -> tuple[Point, ...]:
    """Return the first, the lowest, the highest and the last point of each column of steps, in the
    order of steps, with a gap where a value was not finite. A short series is returned unchanged.

    Args:
        points: (step, value), by ascending step.
    """
    if len(points) <= _A_COLUMN * columns:
        return tuple((step, value if math.isfinite(value) else None) for step, value in points)
    first, last = points[0][0], points[-1][0]
    wide = (last - first + 1) / columns
    parted = groupby(points, key=lambda point: int((point[0] - first) / wide))
    return tuple(point for _, column in parted for point in _of_column(list(column)))


def _of_column(column: Sequence[tuple[int, float]]) -> Iterator[Point]:
    finite = [point for point in column if math.isfinite(point[1])]
    found: set[Point] = set()
    if finite:
        by_value = (min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1]))
        found = {finite[0], *by_value, finite[-1]}
    if len(finite) < len(column):
        found.add((next(step for step, value in column if not math.isfinite(value)), None))
    yield from sorted(found, key=lambda point: point[0])
