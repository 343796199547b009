"""Merges the columns of many tables into one set, as it is written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.chunk_columns import NAMES, ROW, ChunkColumns, ColumnSegment, Rows, runs


@dataclass(frozen=True)
class _Source:
    """Columns that rows are taken from: those of a range, and those of bases. A group of tensors
    has a short range of the rows of each rank, so that the others are not copied for it."""

    columns: ChunkColumns
    within: slice  # from the first row that is taken to the last one
    bases: Rows  # rows of the bases of those rows, and of their bases, ascending
    packs: NDArray[np.int64]  # for each of its packs, the number in the written table

    @classmethod
    def of(cls, columns: ChunkColumns, taken: list[slice], packs: Mapping[bytes, int]) -> _Source:
        rows = [np.arange(*ends) for ends in _joined(taken)]
        bases = columns.bases_of(np.concatenate(rows))
        numbers = np.array([packs.get(pack, -1) for pack in columns.packs], np.int64)
        within = slice(min(its.start for its in taken), max(its.stop for its in taken))
        return cls(columns, within, bases, numbers)

    def __len__(self) -> int:
        return self.bases_at + len(self.bases)

    @property
    def bases_at(self) -> int:
        """The number of the first base among its rows."""
        return int(self.within.stop - self.within.start)

    def pieces(self, name: str) -> list[NDArray[Any]]:
        """Returns its rows of a column, in pieces."""
        column = self.columns[name]
        found = [column[self.within], *([column[self.bases]] if len(self.bases) else [])]
        return [self.packs[piece] for piece in found] if name == "pack" else found

    def moved(self, numbers: Rows) -> Rows:
        """Returns the column of bases, given the `numbers` of the bases' rows. Rows that are
        neither taken nor bases may have any number."""
        found = np.concatenate(self.pieces("base")).astype(np.int64)
        if len(self.bases):
            at = np.searchsorted(self.bases, found)
            return np.where(found < 0, -1, numbers[np.minimum(at, len(numbers) - 1)])
        return np.full(len(found), -1, np.int64)


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
    rows = _rows(taken, sources, order)
    found = {}
    for name in NAMES:
        if name == "base":
            ends = np.cumsum([len(source.bases) for source in sources.values()])[:-1]
            moved = np.split(count + numbers, ends) if sources else []
            whole = [one.moved(its) for one, its in zip(sources.values(), moved, strict=True)]
        else:
            whole = [piece for source in sources.values() for piece in source.pieces(name)]
        nothing = np.zeros((0, *ROW[name].shape), ROW[name].base)
        found[name] = np.concatenate([*whole] or [nothing])[rows]
    if (found["pack"] < 0).any():
        raise KeyError("a chunk is in a pack that is not listed")
    return {name: column.astype(ROW[name].base) for name, column in found.items()}, len(order)


def _rows(
    taken: Sequence[tuple[ChunkColumns, slice]], sources: Mapping[int, _Source], order: Rows
) -> Rows:
    """Returns the rows to write, numbered over the rows of all sources end to end. A commit of many
    ranks takes millions of short slices, so that nothing but this is done for each."""
    firsts = np.cumsum([0, *map(len, sources.values())]).tolist()
    begins = dict(zip(sources, firsts, strict=False))
    first = {key: begins[key] - source.within.start for key, source in sources.items()}
    starts = np.array([first[id(its)] + rows.start for its, rows in taken], np.int64)
    lengths = np.array([rows.stop - rows.start for _, rows in taken], np.int64)
    before = np.cumsum(lengths) - lengths
    placed = np.repeat(starts - before, lengths) + np.arange(lengths.sum())
    bases = [begins[key] + its.bases_at + np.arange(len(its.bases)) for key, its in sources.items()]
    return np.concatenate([placed, np.concatenate([np.zeros(0, np.int64), *bases])[order]])


def _sources(
    taken: Sequence[tuple[ChunkColumns, slice]], packs: Mapping[bytes, int]
) -> dict[int, _Source]:
    """Returns the sources by the identity of their columns."""
    rows: dict[int, list[slice]] = {}
    for its, those in taken:
        rows.setdefault(id(its), []).append(those)
    columns = {id(its): its for its, _ in taken}
    return {key: _Source.of(columns[key], mine, packs) for key, mine in rows.items()}


def _joined(taken: Iterable[slice]) -> list[tuple[int, int]]:
    """Returns the ranges that these slices make up, ascending. They are mostly one."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted((its.start, its.stop) for its in taken):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return found


def _order(sources: Collection[_Source]) -> tuple[Rows, Rows]:
    """Returns which of all sources' bases are written, in order, and the number of each there."""
    empty = np.zeros(0, np.int64)
    packs = np.concatenate([empty, *(s.packs[s.columns["pack"][s.bases]] for s in sources)])
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
