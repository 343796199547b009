"""The table of one item of a checkpoint: its tensors, which chunks they are made of, its values.

    u32       length of the JSON
    JSON      {"tensors": [{"name", "dtype", "shape", "tile", "chunks"}], "values", "bases"}
    columns   boxes: i64, offsets then sizes of each chunk, tensor by tensor; then the fields of
              ROW, each as one column over all chunks (in the order of the tensors) and all bases

All numbers are little-endian; the whole is one zstd frame.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from checkpointing.canonical import Reader
from checkpointing.codec import Codec
from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.chunks import ID_BYTES, Chunk, Place
from checkpointing.format.elements import element
from checkpointing.format.tiles import Box, Shape
from checkpointing.values import Json

ROW = np.dtype(
    [
        ("id", "u1", ID_BYTES),
        ("pack", "<u4"),  # index in the manifest's list of packs
        ("offset", "<u8"),
        ("length", "<u8"),
        ("raw_length", "<u8"),
        ("codec", "u1"),
        ("checksum", "<u8"),
        ("base", "<i4"),  # row of the base, always a later one; -1 if there is none
    ]
)
MAX_TABLE = 2 << 30  # bytes, decompressed: refused above, before anything is allocated
_MAX_DIMS = 64  # of numpy
_PIECE = 1 << 20  # bytes that are decompressed at a time


@dataclass(frozen=True)
class Spec:
    """What a tensor is."""

    dtype: str
    shape: Shape
    tile: Shape

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * element(self.dtype).itemsize


@dataclass
class Table:
    """Tensors by full name ("model/wte.weight"), each with its chunks by box; values likewise."""

    tensors: dict[str, Spec] = field(default_factory=dict)
    chunks: dict[str, dict[Box, Chunk]] = field(default_factory=dict)
    values: dict[str, Json] = field(default_factory=dict)

    def place(self, name: str, spec: Spec, placed: Mapping[Box, Chunk]) -> None:
        """Add chunks of a tensor.

        Raises:
            ValueError: it is there with another shape or dtype.
        """
        if self.tensors.setdefault(name, spec) != spec:
            raise ValueError(f"{name!r} is both {self.tensors[name]} and {spec}")
        self.chunks.setdefault(name, {}).update(placed)

    def all_chunks(self) -> Iterator[Chunk]:
        """Every chunk that is needed to read the item, bases after what needs them."""
        for placed in self.chunks.values():
            for chunk in placed.values():
                at: Chunk | None = chunk
                while at is not None:
                    yield at
                    at = at.base

    def packs(self) -> set[bytes]:
        return {chunk.pack for chunk in self.all_chunks()}

    @property
    def raw_bytes(self) -> int:
        return sum(spec.bytes for spec in self.tensors.values())


def merge(tables: Iterable[Table]) -> Table:
    """One table of what several ranks wrote.

    Raises:
        ValueError: they hold different tensors under one name, or do not fill them.
    """
    merged = Table()
    for table in tables:
        for name, spec in table.tensors.items():
            merged.place(name, spec, table.chunks[name])
        merged.values = {**table.values, **merged.values}
    for name, spec in merged.tensors.items():
        if problem := gap(spec, merged.chunks[name]):
            raise ValueError(f"the ranks' parts of {name!r} {problem}")
    return merged


def gap(spec: Spec, boxes: Iterable[Box]) -> str | None:
    """What is wrong if `boxes` do not cover the tensor exactly once; None if they do."""
    boxes = list(boxes)
    if problem := misplaced(spec, boxes):
        return problem
    covered = sum(box.count for box in boxes)
    if covered != math.prod(spec.shape):
        return f"cover {covered} of its {math.prod(spec.shape)} elements"
    return None


def misplaced(spec: Spec, boxes: Iterable[Box]) -> str | None:
    """What is wrong if `boxes` cover parts of the tensor more than once; None if they do not."""
    by_tile: dict[Shape, list[Box]] = {}
    for box in boxes:
        if len(box.sizes) != len(spec.shape) or not _inside(box, spec):
            return f"lie outside its shape {spec.shape}"
        corner = tuple(o // t if t else 0 for o, t in zip(box.offsets, spec.tile, strict=True))
        by_tile.setdefault(corner, []).append(box)
    return "overlap" if any(_overlap(group) for group in by_tile.values()) else None


def _inside(box: Box, spec: Spec) -> bool:
    """Inside the tensor, and inside one tile of it."""
    sides = zip(box.offsets, box.sizes, spec.shape, spec.tile, strict=True)
    return all(
        n > 0 and o >= 0 and o + n <= s and t and o // t == (o + n - 1) // t for o, n, s, t in sides
    )


def _overlap(group: list[Box]) -> bool:
    """Along the dimension that is cut most, so that each is compared with few: thousands of ranks
    may share a tile."""
    dims = range(len(group[0].sizes))
    dim = max(dims, key=lambda d: len({box.offsets[d] for box in group}), default=None)
    if dim is None:
        return len(group) > 1
    reaching: list[Box] = []
    for box in sorted(group, key=lambda box: box.offsets[dim]):
        reaching = [r for r in reaching if r.offsets[dim] + r.sizes[dim] > box.offsets[dim]]
        if any(box.intersect(other) for other in reaching):
            return True
        reaching.append(box)
    return False


def to_bytes(table: Table, packs: Mapping[bytes, int]) -> bytes:
    """The stored form; `packs` gives the index of each pack in the manifest's list.

    Raises:
        ValueError: it is larger than any reader takes.
    """
    placed = [chunk for name in table.tensors for chunk in table.chunks[name].values()]
    bases = _bases(placed)
    index = {chunk.place: len(placed) + i for i, chunk in enumerate(bases)}
    chunks = [*placed, *bases]
    rows = np.zeros(len(chunks), ROW)
    ids = np.frombuffer(b"".join(chunk.id for chunk in chunks), np.uint8)
    rows["id"] = ids.reshape(-1, ID_BYTES)
    rows["pack"] = [packs[chunk.pack] for chunk in chunks]
    rows["base"] = [-1 if c.base is None else index[c.base.place] for c in chunks]
    for name in ("offset", "length", "raw_length", "codec", "checksum"):
        rows[name] = np.array([getattr(chunk, name) for chunk in chunks], ROW[name])
    boxes = [
        np.array([[b.offsets, b.sizes] for b in table.chunks[name]], "<i8").tobytes()
        for name in table.tensors
    ]
    header = json.dumps(_header(table, len(bases)), sort_keys=True, separators=(",", ":")).encode()
    columns = [np.ascontiguousarray(rows[name]).tobytes() for name in ROW.names or ()]
    raw = b"".join([len(header).to_bytes(4, "little"), header, *boxes, *columns])
    if len(raw) > MAX_TABLE:
        raise ValueError(f"a table of {len(raw)} bytes is more than the {MAX_TABLE} of the format")
    return zstandard.compress(raw, 3)


def _header(table: Table, bases: int) -> dict[str, Any]:
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


def _bases(placed: Sequence[Chunk]) -> list[Chunk]:
    """All bases once, each after all that need it: in order of falling depth."""
    found: dict[Place, Chunk] = {}
    for chunk in placed:
        base = chunk.base
        while base is not None:
            found.setdefault(base.place, base)
            base = base.base
    return sorted(found.values(), key=lambda chunk: (-chunk.depth, chunk.place))


def from_bytes(data: bytes, packs: Sequence[bytes], where: str, *, is_part: bool = False) -> Table:
    """Read back what `to_bytes` wrote.

    Args:
        is_part: what one rank wrote, which need not cover the tensors.

    Raises:
        DamagedError: it is not consistent in itself.
        FormatError: a codec or dtype that is not known here.
    """
    raw = _decompress(data, where)
    size = int.from_bytes(raw[:4], "little")
    try:
        header = Reader(json.loads(raw[4 : 4 + size]), where)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: not JSON ({error})") from error
    specs: dict[str, Spec] = {}
    for item in header.children("tensors"):
        if (name := item.text("name")) in specs:
            raise DamagedError(f"{where}: has {name!r} twice")
        specs[name] = _spec(item)
    counts = [item.count("chunks") for item in header.children("tensors")]
    if (sum(counts) + header.count("bases")) * ROW.itemsize > len(raw):  # before boxes are made
        raise DamagedError(f"{where}: its columns are cut off")
    boxes, rest = _parse_boxes(raw, 4 + size, specs, counts, where)
    rows = _parse_rows(raw, rest, sum(counts) + header.count("bases"), where)
    chunks = _parse_chunks(rows, packs, where)
    table = Table(specs, {}, header.object("values"))
    first = 0
    for (name, spec), count, tensor_boxes in zip(specs.items(), counts, boxes, strict=True):
        table.chunks[name] = dict(zip(tensor_boxes, chunks[first : first + count], strict=True))
        _check_sizes(name, spec, table.chunks[name], where, misplaced if is_part else gap)
        first += count
    return table


def _decompress(data: bytes, where: str) -> bytes:
    try:
        size = zstandard.frame_content_size(data)
        if not 4 <= size <= MAX_TABLE:
            raise DamagedError(f"{where}: states a size of {size} bytes")
        # in pieces: what a frame states is not allocated before it is there
        with zstandard.ZstdDecompressor().stream_reader(data) as stream:
            raw = b"".join(iter(lambda: stream.read(_PIECE), b""))
    except zstandard.ZstdError as error:
        raise DamagedError(f"{where}: {error}") from error
    if len(raw) != size:
        raise DamagedError(f"{where}: {len(raw)} bytes instead of {size}")
    return raw


def _spec(item: Reader) -> Spec:
    spec = Spec(item.text("dtype"), item.counts("shape"), item.counts("tile"))
    element(spec.dtype)
    if len(spec.shape) != len(spec.tile) or len(spec.shape) > _MAX_DIMS:
        raise DamagedError(f"tensor {item.text('name')!r}: tile {spec.tile} of shape {spec.shape}")
    return spec


def _parse_boxes(
    raw: bytes, at: int, specs: Mapping[str, Spec], counts: Sequence[int], where: str
) -> tuple[list[list[Box]], int]:
    found = []
    for spec, count in zip(specs.values(), counts, strict=True):
        dims = len(spec.shape)
        end = at + count * 2 * dims * 8
        if end > len(raw):
            raise DamagedError(f"{where}: its boxes are cut off")
        numbers = np.frombuffer(raw[at:end], "<i8").reshape(count, 2, dims).tolist()
        found.append([Box(tuple(offsets), tuple(sizes)) for offsets, sizes in numbers])
        at = end
    return found, at


def _parse_rows(raw: bytes, at: int, count: int, where: str) -> NDArray[np.void]:
    if len(raw) - at != count * ROW.itemsize:
        raise DamagedError(f"{where}: its columns are cut off")
    rows = np.zeros(count, ROW)
    for name in ROW.names or ():
        kind = ROW[name]
        end = at + count * kind.itemsize
        column = np.frombuffer(raw[at:end], kind.base).reshape(count, *kind.shape)
        rows[name] = column
        at = end
    return rows


def _parse_chunks(rows: NDArray[np.void], packs: Sequence[bytes], where: str) -> list[Chunk]:
    ids = rows["id"].tobytes()
    columns = [rows[name].tolist() for name in (ROW.names or ())[1:]]
    chunks: list[Chunk | None] = [None] * len(rows)
    for i in range(len(rows) - 1, -1, -1):
        pack, offset, length, raw_length, codec, check, base = (column[i] for column in columns)
        if pack >= len(packs) or not (base == -1 or i < base < len(rows)):
            raise DamagedError(f"{where}: row {i} points outside its tables")
        try:
            kind = Codec(codec)
        except ValueError:
            raise FormatError(f"{where}: codec {codec} is not known to this version") from None
        chunks[i] = Chunk(
            id=ids[i * ID_BYTES : (i + 1) * ID_BYTES],
            pack=packs[pack],
            offset=offset,
            length=length,
            raw_length=raw_length,
            codec=kind,
            checksum=check,
            base=None if base == -1 else chunks[base],
        )
    return [chunk for chunk in chunks if chunk is not None]


def _check_sizes(
    name: str,
    spec: Spec,
    placed: Mapping[Box, Chunk],
    where: str,
    wrong: Callable[[Spec, Iterable[Box]], str | None],
) -> None:
    itemsize = element(spec.dtype).itemsize
    if problem := wrong(spec, placed):
        raise DamagedError(f"{where}: the chunks of {name!r} {problem}")
    for box, chunk in placed.items():
        if chunk.raw_length != box.count * itemsize:
            raise DamagedError(f"{where}: {chunk.raw_length} bytes for {box} of {name!r}")
        if chunk.base is not None and chunk.base.raw_length != chunk.raw_length:
            raise DamagedError(f"{where}: a base of another length in {name!r}")
