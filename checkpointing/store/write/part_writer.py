"""Writes what one rank saves: cuts it into tiles, hashes them, refers to or encodes them, packs
them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.codec import Codec, EncodeBudget
from checkpointing.codec.thread_buffers import thread_buffer
from checkpointing.format.chunks import Chunk, checksum, chunk_id
from checkpointing.format.element_types import ElementType, element
from checkpointing.format.item_table import ItemTable, TensorSpec
from checkpointing.format.manifest import item_of
from checkpointing.format.object_keys import SaveId
from checkpointing.format.tiles import Box, Shape, tile_shape, tiles
from checkpointing.format.values.json_values import Json
from checkpointing.storage import Buffer
from checkpointing.storage.lazy_parts import LazyPart
from checkpointing.store.read.chunk_fetcher import ChunkFetcher
from checkpointing.store.store import Store
from checkpointing.store.write.base_chunks import BaseReader
from checkpointing.store.write.chunk_encoding import ChunkEncoder, EncodedChunk, kind_of
from checkpointing.store.write.chunk_index import ChunkIndex
from checkpointing.store.write.packer import PACK_BYTES, ChunkPacker

WINDOW = 64 << 20
GROUP = 8 << 20  # bytes of tiles that one thread processes, and reads the bases of, at a time
THREADS = min(4, os.cpu_count() or 1)
_CUTS = 64  # boxes whose tiles are remembered
AHEAD = 64  # tiles that are looked at for bases to read with the one that is asked for


@dataclass(frozen=True)
class TensorPiece:
    """The piece of a tensor that one rank holds."""

    name: str  # full name: "model/wte.weight"
    dtype: str
    shape: Shape  # shape of the whole tensor
    offsets: Shape  # where the piece starts in it
    data: NDArray[Any]  # any dtype of that size; its shape is the piece's

    @property
    def box(self) -> Box:
        return Box(self.offsets, self.data.shape)


@dataclass(frozen=True)
class WrittenPart:
    """What one rank has made durable, or found in the store."""

    tables: Mapping[str, ItemTable]  # by item
    packs: Mapping[bytes, int]  # all packs that the tables refer to, with their sizes
    new_bytes: int  # bytes of the packs that were written
    raw_bytes: int


@dataclass(frozen=True)
class WriteOptions:
    """Options of how a rank writes."""

    pack_bytes: int = PACK_BYTES  # a pack is closed before it grows beyond this
    threads: int = THREADS  # threads that hash and encode
    encoder: ChunkEncoder = field(default_factory=ChunkEncoder)
    window: int = WINDOW  # bytes of tiles that are processed at a time
    only_if_slower: bool = False  # as of `EncodeBudget`


@dataclass
class _Tile:
    name: str
    dtype: str
    box: Box
    data: NDArray[Any]  # a view of the piece

    @cached_property
    def kind(self) -> str:
        return kind_of(self.name, self.dtype)


@dataclass(slots=True)
class _ProcessedTile:
    """A tile after hashing: a known chunk, or the bytes of a new one."""

    tile: _Tile
    id: bytes
    checksum: int  # of the raw bytes
    known: Chunk | None = None
    encoded: EncodedChunk | None = None
    raw: LazyPart | None = None  # what is stored, if that is decided before encoding
    is_allowed: bool | None = None  # as of `ChunkEncoder.encode`

    @property
    def is_open(self) -> bool:
        """Whether it is to be encoded yet."""
        return self.known is None and self.encoded is None and self.raw is None


def write(
    store: Store,
    save: SaveId,
    pieces: Iterable[TensorPiece | None],
    values: Mapping[str, Json],
    index: ChunkIndex,
    options: WriteOptions,
    budget: EncodeBudget | None = None,
    *,
    done: Callable[[int], None] | None = None,
) -> WrittenPart:
    """Make the pieces durable, and return where they lie.

    Args:
        save: announced before `index` was created.
        pieces: taken one after the other, no faster than they are processed; must not change
            meanwhile. Several may be boxes of one tensor. A None among them means that no more
            exist yet: all earlier pieces are processed before the next one is asked for.
        values: by full name, encoded.
        budget: time for encoding; None: no limit.
        done: called with the number of bytes of tiles that are no longer needed, in the order of
            the pieces: those may change then. Without it, none may change before this returns.

    Raises:
        StoreError: something could not be written; what was written is left for a sweep.
    """
    tables = _Tables()
    processor = _TileProcessor(store, index, options, budget, keeps=done is None)
    written: dict[bytes, Chunk] = {}
    with ChunkPacker(store.storage, save.session, options.pack_bytes, budget=budget) as packer:
        for tile in _in_order(processor, tables.noting(pieces), options):
            chunk = tile.known or written.get(tile.id)
            if chunk is None:
                chunk = written[tile.id] = _pack(packer, tile)
            tables.place(tile.tile, chunk)
            if done is not None:
                done(tile.tile.data.nbytes)
        packer.finish()
    found = tables.with_values(values)
    sizes = {**index.packs, **packer.packs}
    packs = {pack: sizes[pack] for table in found.values() for pack in table.packs()}
    return WrittenPart(found, packs, sum(packer.packs.values()), tables.raw_bytes)


class _Tables:
    """The tables of what was written, extended with each piece that comes."""

    def __init__(self) -> None:
        self._tables: dict[str, ItemTable] = {}
        self._placed: dict[str, dict[Box, Chunk]] = {}  # the chunks in them, by full name
        self.raw_bytes = 0

    def noting(self, pieces: Iterable[TensorPiece | None]) -> Iterator[TensorPiece | None]:
        """Yield the same pieces, after each was recorded here."""
        for piece in pieces:
            if piece is not None:
                self._note(piece)
            yield piece

    def place(self, tile: _Tile, chunk: Chunk) -> None:
        self._placed[tile.name][tile.box] = chunk

    def with_values(self, values: Mapping[str, Json]) -> dict[str, ItemTable]:
        for name, value in values.items():
            self._tables.setdefault(item_of(name), ItemTable()).values[name] = value
        return self._tables

    def _note(self, piece: TensorPiece) -> None:
        self.raw_bytes += piece.data.nbytes
        if piece.name in self._placed:
            return
        tile = tile_shape(piece.shape, element(piece.dtype).itemsize)
        table = self._tables.setdefault(item_of(piece.name), ItemTable())
        table.describe(piece.name, TensorSpec(piece.dtype, piece.shape, tile))
        self._placed[piece.name] = table.chunks[piece.name] = {}


def _pack(packer: ChunkPacker, done: _ProcessedTile) -> Chunk:
    size = done.tile.data.nbytes
    if done.raw is not None:
        return packer.add(done.id, done.raw, size, Codec.RAW, None, done.checksum)
    assert done.encoded is not None
    new = done.encoded
    known = done.checksum if new.codec is Codec.RAW else None
    return packer.add(done.id, new.stored, size, new.codec, new.base, known)


def _tiles(pieces: Iterable[TensorPiece | None]) -> Iterator[_Tile | None]:
    for piece in pieces:
        if piece is None:
            yield None
            continue
        kind = element(piece.dtype)
        bits = piece.data.view(kind.bits)
        for box, index in _cut(piece.box, tile_shape(piece.shape, kind.itemsize)):
            yield _Tile(piece.name, piece.dtype, box, bits[index])


@lru_cache(_CUTS)
def _cut(whole: Box, tile: Shape) -> Sequence[tuple[Box, tuple[Any, ...]]]:
    """Return the tiles of a box, each with its index in an array of the box. The tensors of all
    layers, and their moments in an optimizer, are cut alike, in every save."""
    return [(box, box.relative_to(whole).slices) for box in tiles(whole, tile)]


def _groups(tiles: Iterable[_Tile | None]) -> Iterator[tuple[list[_Tile], int]]:
    """Yield tiles in groups for one thread, each with its bytes; an empty group where there are no
    more at the moment, and at the end."""
    group: list[_Tile] = []
    size = 0
    for tile in tiles:
        if group and (tile is None or size + tile.data.nbytes > GROUP):
            yield group, size
            group, size = [], 0
        if tile is None:
            yield [], 0
        else:
            group.append(tile)
            size += tile.data.nbytes
    yield group, size
    yield [], 0


def _in_order(
    processor: _TileProcessor, pieces: Iterable[TensorPiece | None], options: WriteOptions
) -> Iterator[_ProcessedTile]:
    """Yield every tile once it is done, in the order of the pieces, with a bounded number in
    flight."""
    waiting: deque[tuple[int, Future[list[_ProcessedTile]]]] = deque()
    in_flight = 0
    with ThreadPoolExecutor(options.threads, "encode") as pool:
        for group, size in _groups(_tiles(pieces)):
            while waiting and (not group or in_flight + size > options.window):
                done, job = waiting.popleft()
                yield from job.result()
                in_flight -= done
            if group:
                in_flight += size
                waiting.append((size, pool.submit(processor.do, group)))


class _TileProcessor:
    """Processes tiles, in any thread."""

    def __init__(
        self,
        store: Store,
        index: ChunkIndex,
        options: WriteOptions,
        budget: EncodeBudget | None,
        *,
        keeps: bool,
    ) -> None:
        """Prepare the processing.

        Args:
            keeps: the tiles do not change until the last upload has ended, so that what is stored
                raw need not be copied.
        """
        self._keeps = keeps
        self._index, self._encoder, self._budget = index, options.encoder, budget
        self._fetcher = ChunkFetcher(store.storage, threads=1)
        self._relative: set[str] = set()  # kinds of which the last chunk was stored on a base

    def do(self, group: Sequence[_Tile]) -> list[_ProcessedTile]:
        """Process tiles that lie one after the other."""
        expects_raw = self._keeps and self._encoder.expects_raw(self._budget)
        hashed = [self._hash(tile, expects_raw=expects_raw) for tile in group]
        rest = deque(one.tile for one, _ in hashed if one.is_open)
        bases = BaseReader(self._fetcher, lambda: self._to_come(rest))
        done = []
        for one, raw in hashed:
            if not one.is_open:
                done.append(one)
                continue
            rest.popleft()
            one.encoded = self._encode(one, raw, bases)
            done.append(one)
        return done

    def _hash(self, tile: _Tile, *, expects_raw: bool) -> tuple[_ProcessedTile, Buffer | None]:
        """Return a tile with its id, and its bytes as far as it is to be encoded.

        Args:
            expects_raw: the tiles will not change before they are written, most of them as they
                are. Then their bytes are put together in memory that the next tile uses again, and
                once more when they are written.
        """
        if expects_raw and not tile.data.flags.c_contiguous:
            return self._hash_scattered(tile), None
        raw = _contiguous(tile.data)
        return self._name(tile, raw), raw

    def _hash_scattered(self, tile: _Tile) -> _ProcessedTile:
        raw = thread_buffer("scattered tile", tile.data.nbytes).data
        _gather(tile.data, raw)
        found = self._name(tile, raw)
        if found.known is not None:
            return found
        if self._encoder.leaves_raw(raw, element(tile.dtype), self._budget):
            found.raw = LazyPart(len(raw), partial(_gather, tile.data))
        else:
            found.is_allowed = True
        return found

    def _name(self, tile: _Tile, raw: Buffer) -> _ProcessedTile:
        """Return a tile with its id and the chunk that holds it already."""
        # Before the id: readers compare raw bytes with this alone, so bytes that change in memory
        # while they are named and written must be found by it.
        check = checksum(raw)
        id_ = chunk_id(tile.dtype, raw)
        known = self._index.find(id_)
        if known is not None and self._budget is not None:
            self._budget.written(len(raw), 0, 0.0)
        return _ProcessedTile(tile, id_, check, known)

    def _encode(
        self, hashed: _ProcessedTile, raw: Buffer | None, bases: BaseReader
    ) -> EncodedChunk:
        tile = hashed.tile
        encoded = self._encoder.encode(
            raw=_contiguous(tile.data) if raw is None else raw,
            name=tile.name,
            element=element(tile.dtype),
            row=_row_bytes(tile.box, element(tile.dtype)),
            before=self._index.at(tile.name, tile.box),
            read=lambda chunk: bases.read(chunk, tile.dtype, tile.name),
            budget=self._budget,
            is_allowed=hashed.is_allowed,
        )
        may_change = not self._keeps and tile.data.flags.c_contiguous
        if may_change and encoded.codec is Codec.RAW:
            encoded = replace(encoded, stored=bytes(_contiguous(tile.data)))
        change = self._relative.discard if encoded.base is None else self._relative.add
        change(tile.kind)
        return encoded

    def _to_come(self, tiles: Iterable[_Tile]) -> Iterator[Chunk]:
        """Yield the chunks that will probably be read for these tiles: the bases of kinds whose
        last chunk was stored on one."""
        for tile in islice(tiles, AHEAD):
            if tile.kind not in self._relative:
                continue
            before = self._index.at(tile.name, tile.box)
            if before is None:
                continue
            base = self._encoder.reads(tile.name, tile.dtype, before)
            if base is not None and base.raw_length == tile.data.nbytes:
                yield base


def _gather(data: NDArray[Any], into: memoryview) -> None:
    """Copy `data`, which has at least one byte, to memory of as many bytes."""
    np.copyto(np.frombuffer(into, data.dtype).reshape(data.shape), data)


def _contiguous(data: NDArray[Any]) -> Buffer:
    flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return flat.data


def _row_bytes(box: Box, kind: ElementType) -> int:
    """Return the bytes of one step along the first dimension: an embedding's row."""
    rows = box.sizes[0] if len(box.sizes) > 1 else box.count
    return box.count // max(rows, 1) * kind.itemsize
