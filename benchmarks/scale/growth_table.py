"""How measured values grow with the number of ranks or nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table as Shown

_LEAST = 30
"""Ranks or nodes from which on values grow by their number, and not by what is there once."""


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Returns the exponent of growth from the first point to the last one; NaN if both are of one
    size."""
    (x, y), *_, (x2, y2) = points
    return math.log(y2 / y) / math.log(x2 / x) if x != x2 else math.nan


def show_growth(
    sizes: Sequence[int],
    found: Sequence[Mapping[str, float]],
    text: Callable[[str, float], str],
    width: int,
) -> None:
    """Prints a row for each value that is not always 0: at each size, and the slope from the first
    size of at least 30.

    Args:
        found: the values by name, at each size.
        text: returns the text of a value, given its name and itself.
        width: columns of the terminal.
    """
    shown = Shown("", *(f"{size:,}" for size in sizes), "slope")
    first = next(n for n, size in enumerate(sizes) if size >= _LEAST or size == sizes[-1])
    for name in found[0]:
        values = [one[name] for one in found]
        if not any(values):
            continue
        grows = len(sizes) - 1 > first and values[first] > 0 and values[-1] > 0
        points = [(float(sizes[i]), values[i]) for i in (first, -1)]
        cells = [text(name, value) for value in values]
        shown.add_row(name, *cells, f"{slope(points):.2f}" if grows else "")
    Console(width=width).print(shown)
