"""Positions and labels of the numbers on an axis. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOG_FROM = 10.0
"""Ratio of the highest to the lowest value from which on an axis is logarithmic."""
_DENSE = 8
"""Number of simple multiples of powers of 10 up to which all of them are ticks."""
_FEW = 4.0
"""Ratio of the highest to the lowest value up to which 1, 2 and 5 are too few ticks."""
_SMALL = 1e-3
"""Number below which it has a power of 10."""
_MOST = 1e300  # larger values are drawn there
_LEAST = 1e-30
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True)
class Axis:
    """A mapping from values to shares of the length of an axis."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the place of the value, from 0 to 1."""
        if self.is_log:
            low = math.log(self.low)  # of each alone: a quotient of them may be too large a number
            return (math.log(value) - low) / (math.log(self.high) - low)
        return (value - self.low) / (self.high - self.low)

    def value(self, share: float) -> float:
        """Return the value at a place from 0 to 1."""
        if self.is_log:
            low, high = math.log(self.low), math.log(self.high)
            return math.exp(low + share * (high - low))
        return self.low + share * (self.high - self.low)


def axis(low: float, high: float, most: int, *, is_log: bool = False) -> Axis:
    """Return an axis that contains all values from `low` to `high`, with about `most` ticks.

    Args:
        is_log: whether it is logarithmic, for which `may_be_log` has to hold.
    """
    low, high = (min(max(one, -_MOST), _MOST) for one in (low, high))
    if is_log:
        return _log_axis(low, high, most)
    if high - low <= 1e-9 * max(abs(low), abs(high), _LEAST):
        pad = abs(low) / 10 if abs(low) > _LEAST else 1.0
        low, high = (0.0, 1.0) if low == 0 else (low - pad, high + pad)
    step = _nice((high - low) / most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(n * step for n in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def may_be_log(low: float) -> bool:
    """Return whether an axis may be logarithmic whose least value this is."""
    return low > 1 / _MOST


def is_wide(low: float, high: float) -> bool:
    """Return whether the values are better shown on a logarithmic axis."""
    return may_be_log(low) and min(high, _MOST) / low > _LOG_FROM


def span_axis(high: float, most: int, low: float = 0.0, *, least_step: float = 0.0) -> Axis:
    """Return an axis from exactly `low`, at least 0, to exactly `high`, with ticks inside.

    Args:
        least_step: least distance of two ticks, as 1 for whole numbers.
    """
    high = high if high - low > max(_LEAST, 1e-9 * high) else low + 1.0
    step = max(_nice((high - low) / most), least_step)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(n * step for n in range(first, last + 1)))


def time_axis(seconds: float, most: int) -> tuple[Axis, float, str]:
    """Return an axis as `span_axis` in a suitable unit of time: its seconds, and its name."""
    size, name = next(((s, n) for s, n in _UNITS if seconds >= 2 * s), _UNITS[-1])
    return span_axis(seconds / size, most), size, name


def label(value: float, ticks: Sequence[float] = ()) -> str:
    """Format a number in a few characters; `ticks`: the numbers of the same axis."""
    most = max(abs(one) for one in (*ticks, value))
    if value == 0:
        return "0"
    for begin, size, name in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if begin <= most < 1e12:
            return f"{value / size:.4g}{name}"
    if most >= 1e12:
        return f"{value:.3g}"
    if most <= _SMALL or abs(value) < _SMALL:
        digits, _, power = f"{value:.3e}".partition("e")
        return f"{float(digits):g}e{int(power)}"
    if abs(value) >= 1000 or all(float(one).is_integer() for one in (*ticks, value)):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(n * power for n in _NICE if n * power >= step * (1 - 1e-9))


def _log_axis(low: float, high: float, most: int) -> Axis:
    """Return an axis whose ticks are powers of 10; or, for few of them, their simple multiples, and
    for values that hardly differ, ticks as of a linear axis."""
    if high / low <= _FEW:
        ticks = tuple(tick for tick in axis(low, high, most).ticks if tick > 0)
        return Axis(min(low, ticks[0]), max(high, ticks[-1]), ticks, is_log=True)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    found = [n * 10.0**power for power in range(first, last + 1) for n in (1.0, 2.0, 5.0)]
    below = max(tick for tick in found if tick <= low * (1 + 1e-9))
    above = min(tick for tick in found if tick >= high * (1 - 1e-9))
    ticks = tuple(tick for tick in found if below <= tick <= above)
    if len(ticks) > _DENSE:
        every = -(-(last - first) // most)
        powers = (10.0**n for n in range(first, last + 1, every))
        ticks = tuple(tick for tick in powers if below <= tick <= above)
    return Axis(min(low, below), max(high, above), ticks, is_log=True)
