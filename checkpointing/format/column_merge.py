"""Merges the columns of many tables into one set, as it is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.chunk_columns import NAMES, ROW, ChunkColumns, ColumnSegment, Rows, runs


@dataclass(frozen=True)
class _Source:
    """Columns that rows are taken from. Nothing here takes time by the number of rows that are not
    taken: a table is written group by group, and each takes few rows of many sources."""

    columns: ChunkColumns
    bases: Rows  # rows of the bases of those rows, and of their bases, ascending
    packs: NDArray[np.int64]  # for each of its packs, the number in the written table

    @classmethod
    def of(cls, columns: ChunkColumns, taken: list[slice], packs: Mapping[bytes, int]) -> _Source:
        rows = [np.arange(its.start, its.stop) for its in taken]
        bases = columns.bases_of(np.concatenate(rows))
        numbers = np.array([packs.get(pack, -1) for pack in columns.packs], np.int64)
        return cls(columns, bases, numbers)

    def column(self, name: str, rows: Rows | slice) -> NDArray[Any]:
        found = self.columns[name][rows]
        return self.packs[found] if name == "pack" else found

    def moved(self, rows: Rows | slice, numbers: Rows) -> Rows:
        """Returns the column of bases of these rows, given the `numbers` of the bases' rows."""
        found = self.columns["base"][rows].astype(np.int64)
        has = found >= 0
        found[has] = numbers[np.searchsorted(self.bases, found[has])]
        return found


def gather(
    segments: Sequence[ColumnSegment], packs: Mapping[bytes, int]
) -> tuple[dict[str, NDArray[Any]], int]:
    """Returns the columns of all segments, in their order, and then of all bases once, each after
    all chunks that need it: in order of decreasing depth, then of place.

    Args:
        packs: the number of each pack in the written table, in order of their names.

    Returns:
        The columns by field name of `ROW`, and the number of rows of bases.

    Raises:
        KeyError: a chunk is in another pack.
    """
    taken = runs(segments)
    sources = _sources(taken, packs)
    order, numbers = _order(sources.values())
    count = sum(len(segment.boxes) for segment in segments)
    ends = np.cumsum([0, *(len(source.bases) for source in sources.values())])
    moved = {
        key: count + numbers[start:end]
        for key, start, end in zip(sources, ends[:-1], ends[1:], strict=True)
    }

    def column(name: str, key: int, rows: Rows | slice) -> NDArray[Any]:
        if name == "base":
            return sources[key].moved(rows, moved[key])
        return sources[key].column(name, rows)

    found = {}
    for name in NAMES:
        placed = [column(name, id(columns), rows) for columns, rows in taken]
        bases = [column(name, key, source.bases) for key, source in sources.items()]
        empty = np.zeros((0, *ROW[name].shape), ROW[name].base)
        found[name] = np.concatenate([empty, *placed, np.concatenate([empty, *bases])[order]])
    if (found["pack"] < 0).any():
        raise KeyError("a chunk is in a pack that is not listed")
    return {name: column.astype(ROW[name].base) for name, column in found.items()}, len(order)


def _sources(
    taken: Sequence[tuple[ChunkColumns, slice]], packs: Mapping[bytes, int]
) -> dict[int, _Source]:
    """Returns the sources by the identity of their columns."""
    rows: dict[int, list[slice]] = {}
    for its, those in taken:
        rows.setdefault(id(its), []).append(those)
    columns = {id(its): its for its, _ in taken}
    return {key: _Source.of(columns[key], mine, packs) for key, mine in rows.items()}


def _order(sources: Collection[_Source]) -> tuple[Rows, Rows]:
    """Returns which of all sources' bases are written, in order, and the number of each there."""
    empty = np.zeros(0, np.int64)
    packs = np.concatenate([empty, *(s.column("pack", s.bases) for s in sources)])
    offsets = np.concatenate([empty.view("<u8"), *(s.columns["offset"][s.bases] for s in sources)])
    depths = np.concatenate([empty, *(s.columns.depths(s.bases) for s in sources)])
    first, same = _once(packs, offsets)
    order = first[np.lexsort((offsets[first], packs[first], -depths[first]))]
    numbers = np.zeros(len(first), np.int64)
    numbers[same[order]] = np.arange(len(order))
    return order, numbers[same]


def _once(packs: NDArray[np.int64], offsets: NDArray[np.uint64]) -> tuple[Rows, Rows]:
    """Returns the first occurrence of each place, and, for all, which of these it equals."""
    order = np.lexsort((offsets, packs))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(packs[order]) != 0) | (offsets[order][1:] != offsets[order][:-1])
    same = np.zeros(len(order), np.int64)
    same[order] = np.cumsum(is_new) - 1
    return order[is_new], same
