"""Which columns of a table fit on a screen. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def fitting_columns(widths: Mapping[str, int], room: int, gap: int) -> list[str]:
    """Return the columns that fit, and no column without those before it.

    Args:
        widths: the width of each column by its name, the most important one first.
        room: number of columns of the terminal.
        gap: space before each column, part of `room`.
    """
    shown, used = [], 0
    for name, width in widths.items():
        used += gap + width
        if used > room:
            break
        shown.append(name)
    return shown
