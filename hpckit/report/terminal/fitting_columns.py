"""Which columns of a table fit on a screen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized


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


def fitting_cells(
    rows: Sequence[Mapping[str, Sized]],
    importance: Sequence[str],
    room: int,
    folded: Mapping[str, int],
) -> set[str]:
    """Return the columns of a table of the commands that fit, as `fitting_columns`.

    Args:
        rows: the cells of each row by the names of their columns.
        importance: the columns, the most important one first.
        folded: columns whose longer cells are folded, with the width that they have at least.
    """
    wide = {name: max([len(name), *(len(row[name]) for row in rows)]) for name in importance}
    wide |= {name: min(wide[name], least) for name, least in folded.items()}
    return {*fitting_columns(wide, room + 1, 1)}
