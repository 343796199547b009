"""Keeps the chunks of a table in columns, as they are stored. A large checkpoint has millions of
chunks, of which a rank reads few and a commit only copies rows, so `Chunk` objects are made on
demand."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec import Codec
from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.box_coverage import Boxes, as_boxes
from checkpointing.format.chunks import ID_BYTES, MAX_DEPTH, Chunk, with_bases
from checkpointing.format.tiles import Box

ROW = np.dtype(
    [
        ("id", "u1", ID_BYTES),
        ("pack", "<u4"),  # index in the manifest's list of packs
        ("offset", "<u8"),
        ("length", "<u8"),
        ("raw_length", "<u8"),
        ("codec", "u1"),
        ("checksum", "<u8"),
        ("base", "<i4"),  # row of the base, always a later one; -1: none
    ]
)
NAMES = ROW.names or ()
_NUMBERS = ("offset", "length", "raw_length", "codec", "checksum")
_numbers = attrgetter(*_NUMBERS)
_CODECS = {codec.value: codec for codec in Codec}

Rows = NDArray[np.int64]  # row numbers


class ChunkColumns:
    """The chunks of a table as columns: first the rows that have a box, then those of all their
    bases."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], packs: Sequence[bytes]) -> None:
        """
        Args:
            columns: columns by field name of `ROW`, all of one length.
            packs: the names that the numbers in column "pack" are indexes of.
        """
        self._columns, self.packs = columns, packs
        self._bases: dict[int, Chunk] = {}  # bases made so far, by row

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> ChunkColumns:
        """Returns the columns of these chunks, followed by those of their bases."""
        bases = _bases(chunks)
        index = {chunk.place: len(chunks) + i for i, chunk in enumerate(bases)}
        every = [*chunks, *bases]
        packs = list(dict.fromkeys(chunk.pack for chunk in every))
        numbers = {pack: i for i, pack in enumerate(packs)}
        ids = np.frombuffer(b"".join(chunk.id for chunk in every), np.uint8)
        columns = {
            "id": ids.reshape(-1, ID_BYTES),
            "pack": np.array([numbers[chunk.pack] for chunk in every], ROW["pack"]),
            "base": np.array(
                [-1 if c.base is None else index[c.base.place] for c in every], ROW["base"]
            ),
        }
        numbers_of = list(map(_numbers, every))
        for at, name in enumerate(_NUMBERS):
            columns[name] = np.array([row[at] for row in numbers_of], ROW[name])
        return cls(columns, packs)

    def __len__(self) -> int:
        return len(self._columns["base"])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Returns a column."""
        return self._columns[name]

    def check(self, where: str) -> None:
        """Raises:
        DamagedError: a row refers to a pack or base that does not exist. FormatError: a codec is
        unknown to this version.
        """
        bases, codecs = self["base"].astype(np.int64), self["codec"]
        numbers = np.arange(len(self))
        outside = (self["pack"] >= len(self.packs)) | (
            (bases != -1) & ((bases <= numbers) | (bases >= len(self)))
        )
        if outside.any():
            raise DamagedError(f"{where}: row {outside.argmax()} points outside its tables")
        unknown = ~np.isin(codecs, list(_CODECS))
        if unknown.any():
            codec = codecs[unknown.argmax()]
            raise FormatError(f"{where}: codec {codec} is unknown to this version")
        for _ in range(MAX_DEPTH + 1):
            if not len(numbers := self._next(numbers)):
                return
        raise DamagedError(f"{where}: a chunk has more than {MAX_DEPTH} bases")

    def chunks(self, rows: Rows) -> list[Chunk]:
        """Returns the chunks of these rows."""
        bases = self.bases_of(rows)[::-1]
        new = np.array([row for row in bases.tolist() if row not in self._bases], np.int64)
        for row, chunk in zip(new.tolist(), self._make(new), strict=True):
            self._bases[row] = chunk
        return list(self._make(rows))

    def bases_of(self, rows: Rows) -> Rows:
        """Returns the rows of all bases that these rows need, in order: each before those that it
        needs itself."""
        found = [np.zeros(0, np.int64)]
        while len(rows := self._next(rows)):
            found.append(rows)
        return np.unique(np.concatenate(found))

    def depths(self, rows: Rows) -> NDArray[np.int64]:
        """Returns how many other chunks a reader needs for each row."""
        depths = np.zeros(len(rows), np.int64)
        bases = self["base"][rows]
        while (has := bases >= 0).any():
            depths += has
            bases = np.where(has, self["base"][bases], -1)
        return depths

    def _next(self, rows: Rows) -> Rows:
        """Returns the rows of the direct bases of these rows."""
        bases = self["base"][rows]
        return np.unique(bases[bases >= 0]).astype(np.int64)

    def _make(self, rows: Rows) -> Iterator[Chunk]:
        """Make the chunks of rows whose bases were made before."""
        ids = self["id"][rows].tobytes()
        columns = [self[name][rows].tolist() for name in NAMES[1:]]
        for number, values in enumerate(zip(*columns, strict=True)):
            pack, offset, length, raw_length, codec, checksum, base = values
            yield Chunk(
                id=ids[number * ID_BYTES : (number + 1) * ID_BYTES],
                pack=self.packs[pack],
                offset=offset,
                length=length,
                raw_length=raw_length,
                codec=_CODECS[codec],
                checksum=checksum,
                base=None if base == -1 else self._bases[base],
            )


@dataclass(frozen=True, slots=True)
class ColumnSegment:
    """Rows of some columns, with the boxes of their chunks."""

    boxes: Boxes
    columns: ChunkColumns
    first: int  # the row of the first box; the other boxes' rows follow it

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + len(self.boxes))

    def pairs(self, which: Rows) -> Iterator[tuple[Box, Chunk]]:
        """Yields the boxes of these numbers, with their chunks."""
        chunks = self.columns.chunks(self.first + which)
        return zip(as_boxes(self.boxes[which]), chunks, strict=True)


class _BoxFinder:
    """Finds the boxes of a segment that share an element with another box. The ranks of a node ask
    for many boxes of one tensor, and a look at all of its boxes for each would be quadratic."""

    def __init__(self, segment: ColumnSegment) -> None:
        self._segment = segment
        lows = segment.boxes[:, 0]
        distinct = [len(np.unique(lows[:, dim])) for dim in range(lows.shape[1])]
        # the dimension along which the boxes lie apart most
        self._dim = int(np.argmax(distinct)) if distinct else None
        if self._dim is not None:
            self._order = np.argsort(lows[:, self._dim], kind="stable")
            self._lows = lows[self._order, self._dim]
            self._longest = int(segment.boxes[:, 1, self._dim].max(initial=0))

    def reaching(self, box: Box) -> Iterator[tuple[Box, Chunk]]:
        """Yields the boxes that share an element with `box`, in order, with their chunks."""
        near = self._near(box)
        low = np.array(box.offsets, np.int64)
        end = low + np.array(box.sizes, np.int64)
        lows = self._segment.boxes[near, 0]
        ends = lows + self._segment.boxes[near, 1]
        return self._segment.pairs(near[((lows < end) & (low < ends)).all(axis=1)])

    def _near(self, box: Box) -> Rows:
        """Returns the numbers of all boxes that can reach `box` in one dimension, ascending."""
        if self._dim is None:  # of a scalar
            return np.arange(len(self._segment.boxes))
        low, size = box.offsets[self._dim], box.sizes[self._dim]
        first = np.searchsorted(self._lows, low - self._longest, side="right")
        last = np.searchsorted(self._lows, low + size, side="left")
        return np.sort(self._order[first:last])


def runs(segments: Iterable[ColumnSegment]) -> list[tuple[ChunkColumns, slice]]:
    """Returns the rows of the segments, in order; consecutive rows are joined to one slice."""
    found: list[tuple[ChunkColumns, slice]] = []
    columns, start, stop = None, 0, 0
    for segment in segments:  # of which a commit of many ranks has millions
        if segment.columns is columns and segment.first == stop:
            stop += len(segment.boxes)
            continue
        if columns is not None:
            found.append((columns, slice(start, stop)))
        columns, start = segment.columns, segment.first
        stop = start + len(segment.boxes)
    if columns is not None:
        found.append((columns, slice(start, stop)))
    return found


def by_columns(segments: Iterable[ColumnSegment]) -> Iterator[ColumnSegment]:
    """Yields the segments in the order of their columns and rows; columns come in the order in
    which they were seen first."""
    found: dict[int, list[ColumnSegment]] = {}
    for segment in segments:
        found.setdefault(id(segment.columns), []).append(segment)
    for mine in found.values():
        yield from sorted(mine, key=attrgetter("first"))


class ChunksByBox(Mapping[Box, Chunk]):
    """The chunks of one tensor, by box; of several with the same box, the last one counts."""

    def __init__(self, segments: Sequence[ColumnSegment]) -> None:
        self.segments = segments

    @property
    def boxes(self) -> Boxes:
        return np.concatenate([segment.boxes for segment in self.segments])

    def __len__(self) -> int:
        return sum(len(segment.boxes) for segment in self.segments)

    def __iter__(self) -> Iterator[Box]:
        return iter(self._all)

    def __getitem__(self, box: Box) -> Chunk:
        segment, number = self._where[np.array([box.offsets, box.sizes], np.int64).tobytes()]
        ((_, chunk),) = segment.pairs(np.array([number]))
        return chunk

    def items(self) -> ItemsView[Box, Chunk]:
        return self._all.items()

    def values(self) -> ValuesView[Chunk]:
        return self._all.values()

    def pairs(self) -> Iterator[tuple[Box, Chunk]]:
        """Yields all boxes and chunks, which are not kept in memory."""
        for segment in self.segments:
            yield from segment.pairs(np.arange(len(segment.boxes)))

    def reaching(self, box: Box) -> Iterator[tuple[Box, Chunk]]:
        """Yields the boxes and chunks that share an element with `box`."""
        for finder in self._finders:
            yield from finder.reaching(box)

    @cached_property
    def _finders(self) -> list[_BoxFinder]:
        return [_BoxFinder(segment) for segment in self.segments]

    @cached_property
    def _where(self) -> dict[bytes, tuple[ColumnSegment, int]]:
        """Returns the chunks by the bytes of their boxes."""
        return {
            box.tobytes(): (segment, number)
            for segment in self.segments
            for number, box in enumerate(segment.boxes)
        }

    @cached_property
    def _all(self) -> dict[Box, Chunk]:
        found: dict[Box, Chunk] = {}
        for segment in self.segments:
            found.update(segment.pairs(np.arange(len(segment.boxes))))
        return found


def _bases(placed: Sequence[Chunk]) -> list[Chunk]:
    """Returns all bases once, each after all chunks that need it: in order of decreasing depth."""
    needed = with_bases(chunk.base for chunk in placed if chunk.base is not None)
    once = {base.place: base for base in needed}
    return sorted(once.values(), key=lambda chunk: (-chunk.depth, chunk.place))
