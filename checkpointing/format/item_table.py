"""The table of one item of a checkpoint: its tensors, their chunks, and its values.

    u32       length of the JSON
    JSON      {"tensors": [{"name", "dtype", "shape", "tile", "chunks"}], "values", "bases"}
    columns   boxes: i64, offsets then sizes of each chunk, tensor by tensor; then the fields of
              `ROW`, each as one column over all chunks (in the order of the tensors) and all bases

All numbers are little-endian; the whole is one zstd frame.

The table of an item with very many chunks is cut into one table for each group of its tensors, so
that a reader needs those of its own tensors only. Their outline is

    u32       length of the JSON
    JSON      as above with "bases" 0, and "groups", the number of tensors of each group, in order
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from checkpointing.errors import DamagedError
from checkpointing.format.box_coverage import Boxes, as_array, as_boxes, elements, first_gap, gap
from checkpointing.format.canonical_json import JsonReader
from checkpointing.format.chunk_columns import NAMES, ROW, ChunkColumns, ChunksByBox, ColumnSegment
from checkpointing.format.chunks import Chunk, with_bases
from checkpointing.format.column_merge import gather
from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box, Shape
from checkpointing.format.values.json_values import Json
from checkpointing.storage.interface import Buffer

# bytes when decompressed; larger tables are refused before anything is allocated
MAX_TABLE = 16 << 30
# bytes that any table may have; a larger one only up to this ratio to its stored size
_ANY, _RATIO = 64 << 20, 1000
_MAX_DIMS = 64  # numpy's limit
_PIECE = 1 << 20  # bytes that are decompressed at a time
# chunks of an item from which on its table is cut into groups of tensors
GROUPED = 1 << 18
_GROUP = 1 << 16  # least chunks of a group, except the last one
# full groups of an item, at most; their hashes stand in the header, which every reader reads
MOST_GROUPS = 64
# heads of part records that are kept parsed, and the most bytes of each
_SHARED_HEADS, _MOST_SHARED = 32, 1 << 18
_MANY = 32  # average number of chunks per tensor from which on they stay in columns


@dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of a tensor."""

    dtype: str
    shape: Shape
    tile: Shape

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * element(self.dtype).itemsize


@dataclass
class ItemTable:
    """Tensors by full name ("model/wte.weight"), each with its chunks by box, and values by full
    name."""

    tensors: dict[str, TensorSpec] = field(default_factory=dict)
    chunks: dict[str, Mapping[Box, Chunk]] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)

    def place(self, name: str, spec: TensorSpec, placed: Mapping[Box, Chunk]) -> None:
        """Add chunks of a tensor.

        Raises:
            ValueError: the table has it with another shape or dtype.
        """
        self.describe(name, spec)
        mine = self.chunks.get(name)
        if not isinstance(mine, dict):
            mine = self.chunks[name] = dict(mine.items() if mine is not None else ())
        mine.update(placed.items())

    def describe(self, name: str, spec: TensorSpec) -> None:
        """Add a tensor without chunks; raises as `place`."""
        known = self.tensors.setdefault(name, spec)
        if known is not spec and known != spec:
            raise ValueError(f"{name!r} is both {self.tensors[name]} and {spec}")

    def in_columns(self) -> ItemTable:
        """Returns the same table with the chunks of each tensor as `ChunksByBox`, in the order of
        the tensors."""
        every = {name: self.chunks[name] for name in self.tensors}
        made = [placed for placed in every.values() if not isinstance(placed, ChunksByBox)]
        columns = ChunkColumns.of([chunk for placed in made for chunk in placed.values()])
        first = 0
        for name, placed in every.items():
            if not isinstance(placed, ChunksByBox):
                boxes = as_array(placed, len(self.tensors[name].shape))
                every[name] = ChunksByBox([ColumnSegment(boxes, columns, first)])
                first += len(boxes)
        return ItemTable(self.tensors, every, self.values)

    def segments(self) -> list[ColumnSegment]:
        """Returns the segments of a table in columns, one after the other."""
        placed = (one for one in self.chunks.values() if isinstance(one, ChunksByBox))
        return [segment for one in placed for segment in one.segments]

    def reaching(self, name: str, box: Box) -> Iterable[tuple[Box, Chunk]]:
        """Returns the chunks of a tensor that share an element with `box`, with their boxes; `box`
        is inside the tensor."""
        placed = self.chunks[name]
        is_all = box.sizes == self.tensors[name].shape
        if isinstance(placed, ChunksByBox):
            return placed.pairs() if is_all else placed.reaching(box)
        if is_all:
            return placed.items()
        return ((own, chunk) for own, chunk in placed.items() if own.intersect(box))

    def all_chunks(self) -> Iterator[Chunk]:
        """Yields every chunk that is needed to read the item, bases after the chunks that need
        them."""
        for placed in self.chunks.values():
            yield from with_bases(placed.values())

    def packs(self) -> set[bytes]:
        return {chunk.pack for chunk in self.all_chunks()}

    @property
    def raw_bytes(self) -> int:
        return sum(spec.bytes for spec in self.tensors.values())


def merge(tables: Iterable[ItemTable]) -> ItemTable:
    """Returns one table of what several ranks wrote.

    Raises:
        ValueError: they hold different tensors under one name, or do not cover them.
    """
    merged = ItemTable()
    parts: dict[str, list[ColumnSegment]] = {}
    for table in tables:
        for name, placed in table.in_columns().chunks.items():
            merged.describe(name, table.tensors[name])
            assert isinstance(placed, ChunksByBox)
            parts.setdefault(name, []).extend(placed.segments)
        for name, value in table.values.items():
            merged.values.setdefault(name, value)
    joined = {name: ChunksByBox(parts[name]) for name in merged.tensors}
    specs = [(spec.shape, spec.tile) for spec in merged.tensors.values()]
    if first_gap(specs, [placed.boxes for placed in joined.values()]) is None:
        merged.chunks.update(joined)
    else:
        for name, spec in merged.tensors.items():
            merged.chunks[name] = _checked(name, spec, joined[name])
    return merged


def _checked(name: str, spec: TensorSpec, joined: ChunksByBox) -> Mapping[Box, Chunk]:
    if gap(spec.shape, spec.tile, joined.boxes) is None:
        return joined
    once = dict(joined.items())  # the same box from two ranks counts once
    if problem := gap(spec.shape, spec.tile, as_array(once, len(spec.shape))):
        raise ValueError(f"the ranks' parts of {name!r} {problem}")
    return once


def to_bytes(table: ItemTable, packs: Mapping[bytes, int]) -> bytes:
    """Returns the stored form; `packs` gives the index of each pack in the manifest's list, in
    order.

    Raises:
        KeyError: a chunk is in another pack.
        ValueError: it is larger than readers accept.
    """
    segments = table.in_columns().segments()
    columns, bases = gather(segments, packs)
    boxes = [segment.boxes.astype("<i8", copy=False).tobytes() for segment in segments]
    header = _json(_header(table, bases))
    raw = b"".join(
        [
            *(len(header).to_bytes(4, "little"), header, *boxes),
            *(columns[name].tobytes() for name in NAMES),
        ]
    )
    return _compressed(raw)


def _compressed(raw: bytes) -> bytes:
    data: bytes = zstandard.compress(raw, 3)
    if len(raw) > (most := _most(data)):
        raise ValueError(f"a table of {len(raw)} bytes, but the format allows {most}")
    return data


@dataclass(frozen=True)
class TableOutline:
    """What the table of an item says besides its chunks.

    Attributes:
        tensors: the tensors by full name, in the order of the table.
        values: the values by full name.
        groups: the names of the tensors of each group; none: the table is one.
    """

    tensors: Mapping[str, TensorSpec]
    values: Mapping[str, Json]
    groups: Sequence[tuple[str, ...]]

    @cached_property
    def group_of(self) -> Mapping[str, int]:
        """The number of the group of each tensor."""
        return {name: number for number, names in enumerate(self.groups) for name in names}


def group_sizes(counts: Sequence[int]) -> list[int]:
    """Returns the number of tensors of each group that a table is cut into; none if it stays one.

    Args:
        counts: the number of chunks of each tensor.
    """
    if sum(counts) < GROUPED:
        return []
    least = max(_GROUP, -(-sum(counts) // MOST_GROUPS))
    sizes, tensors, chunks = [], 0, 0
    for count in counts:
        tensors, chunks = tensors + 1, chunks + count
        if chunks >= least:
            sizes.append(tensors)
            tensors = chunks = 0
    return [*sizes, tensors] if tensors else sizes


def outline_of(table: ItemTable) -> TableOutline:
    """Returns the outline under which a table is stored."""
    sizes, names = group_sizes([len(table.chunks[n]) for n in table.tensors]), iter(table.tensors)
    return TableOutline(table.tensors, table.values, [tuple(islice(names, n)) for n in sizes])


def outline_to_bytes(table: ItemTable, outline: TableOutline) -> bytes:
    """Returns the stored form of the outline of a table that is cut into groups.

    Raises:
        ValueError: it is larger than readers accept.
    """
    header = {**_header(table, 0), "groups": [len(names) for names in outline.groups]}
    raw = _json(header)
    return _compressed(len(raw).to_bytes(4, "little") + raw)


def parse_outline(raw: Buffer, where: str) -> TableOutline:
    """Read back the outline of a table that is cut into groups.

    Args:
        raw: the outline, decompressed.

    Raises:
        DamagedError: it is inconsistent.
    """
    header, _ = _parse_header(raw, where)
    specs = _parse_specs(header, where)
    sizes, names = header.counts("groups"), iter(specs)
    groups = [tuple(islice(names, size)) for size in sizes]
    if not sizes or sum(sizes) != len(specs) or not all(sizes):
        raise DamagedError(f"{where}: its groups are not its {len(specs)} tensors")
    return TableOutline(specs, header.object("values"), groups)


def _json(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def _most(data: bytes) -> int:
    """Returns the largest number of bytes that the decompressed table may have."""
    return min(MAX_TABLE, max(_ANY, _RATIO * len(data)))


def _header(table: ItemTable, bases: int) -> dict[str, Any]:
    tensors = [
        {
            "name": name,
            "dtype": spec.dtype,
            "shape": spec.shape,
            "tile": spec.tile,
            "chunks": len(table.chunks[name]),
        }
        for name, spec in table.tensors.items()
    ]
    return {"tensors": tensors, "values": table.values, "bases": bases}


def from_bytes(
    data: bytes, packs: Sequence[bytes], where: str, *, is_part: bool = False
) -> ItemTable:
    """Read back what `to_bytes` wrote.

    Args:
        is_part: whether one rank wrote it; its boxes are then checked by `merge` instead.

    Raises:
        DamagedError: it is inconsistent.
        FormatError: a codec or dtype is unknown to this version.
    """
    return parse(decompress(data, where), packs, where, is_part=is_part)


def parse(
    raw: Buffer,
    packs: Sequence[bytes],
    where: str,
    *,
    is_part: bool = False,
    is_checked: bool = False,
) -> ItemTable:
    """Read back the table in `raw`, which is decompressed; as `from_bytes`. The table refers to the
    memory of `raw`.

    Args:
        is_checked: another process has parsed the very same bytes without an error.
    """
    head, at = _parse_head(raw, where, is_part=is_part)
    specs, counts = dict(head.specs), head.counts
    # checked before boxes are made
    if (sum(counts) + head.bases) * ROW.itemsize > len(raw):
        raise DamagedError(f"{where}: its columns are cut off")
    boxes, rest = _parse_boxes(raw, at, specs, counts, where)
    rows = _parse_rows(raw, rest, sum(counts) + head.bases, where)
    columns = ChunkColumns(rows, packs)
    if not is_checked:
        columns.check(where)
        _check_lengths(specs, boxes, columns, where)
    if not is_part and not is_checked:
        _check_cover(specs, boxes, where)
    stays = is_part or sum(counts) >= _MANY * len(specs)
    chunks = _in_columns(specs, boxes, columns) if stays else _made(specs, boxes, columns)
    return ItemTable(specs, chunks, dict(head.values))


@dataclass(frozen=True)
class _TableHead:
    """The JSON of a table."""

    specs: Mapping[str, TensorSpec]
    counts: Sequence[int]  # chunks of each tensor
    bases: int
    values: Mapping[str, Json]

    @classmethod
    def of(cls, header: JsonReader, where: str) -> _TableHead:
        counts = tuple(item.count("chunks") for item in header.children("tensors"))
        specs = _parse_specs(header, where)
        return cls(specs, counts, header.count("bases"), header.object("values"))


def _parse_head(raw: Buffer, where: str, *, is_part: bool) -> tuple[_TableHead, int]:
    """Returns the JSON of a table, and where it ends. That of a part record is often known, since
    ranks that hold shards of the same tensors write the same."""
    size = int.from_bytes(raw[:4], "little")
    if is_part and size <= _MOST_SHARED:
        with suppress(DamagedError, ValueError, RecursionError):  # said below, with the place
            return _shared_head(bytes(raw[4 : 4 + size])), 4 + size
    header, at = _parse_header(raw, where)
    return _TableHead.of(header, where), at


@lru_cache(_SHARED_HEADS)
def _shared_head(data: bytes) -> _TableHead:
    return _TableHead.of(JsonReader(json.loads(data), ""), "")


def _parse_header(raw: Buffer, where: str) -> tuple[JsonReader, int]:
    """Returns the JSON of a table, and where it ends."""
    size = int.from_bytes(raw[:4], "little")
    try:
        return JsonReader(json.loads(bytes(raw[4 : 4 + size])), where), 4 + size
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: not JSON ({error})") from error


def _parse_specs(header: JsonReader, where: str) -> dict[str, TensorSpec]:
    specs: dict[str, TensorSpec] = {}
    for item in header.children("tensors"):
        if (name := item.text("name")) in specs:
            raise DamagedError(f"{where}: has {name!r} twice")
        specs[name] = _spec(item)
    return specs


def _in_columns(
    names: Iterable[str], boxes: Sequence[Boxes], columns: ChunkColumns
) -> dict[str, Mapping[Box, Chunk]]:
    """Returns the chunks of each tensor in columns, from which objects are made on demand."""
    firsts = np.cumsum([0, *map(len, boxes)]).tolist()
    segments = [ColumnSegment(its, columns, at) for its, at in zip(boxes, firsts[:-1], strict=True)]
    return {name: ChunksByBox([one]) for name, one in zip(names, segments, strict=True)}


def _made(
    names: Iterable[str], boxes: Sequence[Boxes], columns: ChunkColumns
) -> dict[str, Mapping[Box, Chunk]]:
    """Returns the chunks of each tensor as objects."""
    chunks = iter(columns.chunks(np.arange(sum(map(len, boxes)))))
    return {
        name: dict(zip(as_boxes(its), islice(chunks, len(its)), strict=True))
        for name, its in zip(names, boxes, strict=True)
    }


def decompress(data: bytes, where: str) -> bytes:
    """Returns the decompressed table or outline.

    Raises:
        DamagedError: it is not one zstd frame of an acceptable size.
    """
    try:
        size = zstandard.frame_content_size(data)
        if not 4 <= size <= _most(data):
            raise DamagedError(f"{where}: states a size of {size} bytes")
        # in pieces, so that the size that a frame claims is not allocated before the data exists
        with zstandard.ZstdDecompressor().stream_reader(data) as stream:
            raw = b"".join(iter(lambda: stream.read(_PIECE), b""))
    except zstandard.ZstdError as error:
        raise DamagedError(f"{where}: {error}") from error
    if len(raw) != size:
        raise DamagedError(f"{where}: {len(raw)} bytes instead of {size}")
    return raw


def _spec(item: JsonReader) -> TensorSpec:
    spec = TensorSpec(item.text("dtype"), item.counts("shape"), item.counts("tile"))
    size = math.prod(filter(None, (element(spec.dtype).itemsize, *spec.shape)))
    if size >= 1 << 63:
        raise DamagedError(f"tensor {item.text('name')!r}: the shape {spec.shape} is too large")
    if len(spec.shape) != len(spec.tile) or len(spec.shape) > _MAX_DIMS:
        raise DamagedError(f"tensor {item.text('name')!r}: tile {spec.tile} of shape {spec.shape}")
    return spec


def _parse_boxes(
    raw: Buffer, at: int, specs: Mapping[str, TensorSpec], counts: Sequence[int], where: str
) -> tuple[list[Boxes], int]:
    found = []
    for spec, count in zip(specs.values(), counts, strict=True):
        dims = len(spec.shape)
        end = at + count * 2 * dims * 8
        if end > len(raw):
            raise DamagedError(f"{where}: its boxes are cut off")
        numbers = np.frombuffer(raw, "<i8", count * 2 * dims, at)
        found.append(numbers.reshape(count, 2, dims).astype(np.int64, copy=False))
        at = end
    return found, at


def _parse_rows(raw: Buffer, at: int, count: int, where: str) -> dict[str, NDArray[Any]]:
    if len(raw) - at != count * ROW.itemsize:
        raise DamagedError(f"{where}: its columns are cut off")
    columns = {}
    for name in NAMES:
        kind = ROW[name]
        column = np.frombuffer(raw, kind.base, count * math.prod(kind.shape), at)
        columns[name] = column.reshape(count, *kind.shape)
        at += count * kind.itemsize
    return columns


def _check_lengths(
    specs: Mapping[str, TensorSpec], boxes: Sequence[Boxes], columns: ChunkColumns, where: str
) -> None:
    """Check that the lengths of all chunks, and of their bases, fit their boxes."""
    sizes = np.repeat([element(spec.dtype).itemsize for spec in specs.values()], [*map(len, boxes)])
    lengths, count = columns["raw_length"], sum(map(len, boxes))
    wrong = lengths[:count] != elements(boxes) * sizes
    if wrong.any():
        name, box = _place_of(int(wrong.argmax()), specs, boxes)
        raise DamagedError(f"{where}: {lengths[wrong.argmax()]} bytes for {box} of {name!r}")
    bases = columns["base"][:count]
    wrong = (bases >= 0) & (lengths[bases] != lengths[:count])
    if wrong.any():
        name, _ = _place_of(int(wrong.argmax()), specs, boxes)
        raise DamagedError(f"{where}: a base of another length in {name!r}")


def _check_cover(specs: Mapping[str, TensorSpec], boxes: Sequence[Boxes], where: str) -> None:
    found = first_gap([(spec.shape, spec.tile) for spec in specs.values()], boxes)
    if found is not None:
        number, problem = found
        raise DamagedError(f"{where}: the chunks of {list(specs)[number]!r} {problem}")


def _place_of(row: int, names: Iterable[str], boxes: Sequence[Boxes]) -> tuple[str, Box]:
    """Returns the tensor and the box of a row."""
    for name, its in zip(names, boxes, strict=True):
        if row < len(its):
            return name, as_boxes(its[row : row + 1])[0]
        row -= len(its)
    raise AssertionError(f"row {row} is in no tensor")
