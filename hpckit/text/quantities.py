"""The formatting of numbers, sizes and times for a narrow column."""

from __future__ import annotations

import time
from collections.abc import Sequence

_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "G", "T", "P", "E")
_MEASURABLE_S = 0.001


def span(seconds: float) -> str:
    """Formats a duration in its largest unit: "12 s", "3.5 h"."""
    seconds = max(0.0, seconds)
    for size, name in _UNITS:
        if seconds >= 2 * size:
            value = seconds / size
            return f"{value:.0f} {name}" if value >= 10 else f"{value:.1f} {name}"
    return f"{seconds:.0f} s"


def span_s(seconds: float) -> str:
    """Formats a duration that may be short: "4.2 s", "3.5 h"."""
    return f"{seconds:.1f} s" if seconds < 120 else span(seconds)


def ago(when: float | None, now: float) -> str:
    """Formats a past time: "12 s ago", or "never" for None."""
    return "never" if when is None else f"{span(now - when)} ago"


def moment(when: float, now: float) -> str:
    """Formats a time of day, with the date unless it is today."""
    there, here = time.localtime(when), time.localtime(now)
    same = there[:3] == here[:3]
    return time.strftime("%H:%M:%S" if same else "%Y-%m-%d %H:%M", there)


def rate(step_s: float | None) -> str:
    """Formats the rate of steps that take `step_s` seconds each: "8.1/s", "12/min", "3/h"."""
    if not step_s:
        return ""
    for unit, name in ((1.0, "s"), (60.0, "min")):
        if step_s <= unit:
            return f"{_short(unit / step_s)}/{name}"
    return f"{_short(3600 / step_s)}/h"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def count(number: int, noun: str) -> str:
    """Formats a number of things: "1 rank", "1,024 ranks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listing(names: Sequence[str], most: int = 12) -> str:
    """Joins names; those beyond the first `most` are only counted."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def times(number: int) -> str:
    """Formats how often something happened: "once", "twice", "3 times"."""
    return {1: "once", 2: "twice"}.get(number, f"{number:,} times")


def size(n: float) -> str:
    """Formats bytes in at most 10 characters: "1.5 GiB"."""
    power = 0
    while abs(n) >= 1000 and power < len(_BYTES) - 1:
        n, power = n / 1024, power + 1
    return f"{n:.0f} B" if power == 0 else f"{n:.1f} {_BYTES[power]}"


def decimal(n: float, unit: str = "B") -> str:
    """Formats bytes with a decimal unit, as is usual for rates: "1.23 MB"."""
    power = 0
    while abs(n) >= 999.5 and power < len(_DECIMAL) - 1:
        n, power = n / 1000, power + 1
    number = f"{n:.3g}" if abs(n) < 999.5 else f"{n:,.0f}"
    return f"{number} {_DECIMAL[power]}{unit}"


def took(seconds: float) -> str:
    """Formats a measured duration, never as "0.0 s"."""
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"


def speed(total: float, seconds: float) -> str:
    """Formats `total` bytes in `seconds` as bytes per second; "" if either is too small for a
    rate."""
    if total <= 0 or seconds < _MEASURABLE_S:
        return ""
    return decimal(total / seconds, "B/s")


def clean(text: str) -> str:
    """Returns `text` with the control characters escaped that would affect a terminal; it may have
    been written by anyone who can write to a store."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
