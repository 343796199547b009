"""A curve as one line of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"
_ASCII = "_.-:=+*#"
_NO_NUMBER = "!"
_USUAL, _MANY = 0.95, 20
"""Share of the values up to which heights differ, if there are so many."""


def sparkline(values: Sequence[float], width: int, *, is_ascii: bool = False) -> str:
    """Return the values as characters of growing height, at most `width` of them: each shows the
    mean of the values that fall to it. A place with only infinite or NaN values is "!". Of many,
    the highest ones have the same height, so that a spike does not flatten the others."""
    signs = _ASCII if is_ascii else _BLOCKS
    size = max(1, min(width, len(values)))
    parts = [values[len(values) * n // size : len(values) * (n + 1) // size] for n in range(size)]
    means = [_mean(part) for part in parts if part]
    known = [value for value in means if value is not None]
    if not known:
        return _NO_NUMBER * len(means)
    usual = _USUAL if len(known) >= _MANY else 1.0
    low, high = min(known), sorted(known)[int(usual * (len(known) - 1))]
    return "".join(
        _NO_NUMBER if value is None else signs[_height(value, low, high, len(signs))]
        for value in means
    )


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    return sum(value / len(finite) for value in finite) if finite else None


def _height(value: float, low: float, high: float, heights: int) -> int:
    if not math.isfinite(high - low) or value <= low:
        return 0
    return heights - 1 if value >= high else int((value - low) / (high - low) * heights)
