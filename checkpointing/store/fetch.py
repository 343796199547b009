"""Reading chunks: ranged reads that lie close together made one, in parallel, in bounded memory;
nothing is handed out before it was decoded and matched its hash."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from checkpointing.codec import Codec, Layout, decode
from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.chunks import Chunk, Place, checksum, chunk_id
from checkpointing.format.elements import element
from checkpointing.format.names import pack_key
from checkpointing.storage import Buffer, Storage

logger = logging.getLogger("checkpointing")

BATCH = 16 << 20  # bytes of decoded chunks that one thread has in memory at a time
GAP = 64 << 10  # bytes that may be read in vain to save a request, but never more than 1/16
THREADS = min(8, 2 * (os.cpu_count() or 1))


@dataclass(frozen=True)
class Want:
    """A chunk to read, and what to do with its content."""

    chunk: Chunk
    dtype: str
    tensor: str  # for messages
    use: Callable[[Buffer], None]  # may run in any thread; what it is given lives for the call


@dataclass(frozen=True)
class Damage:
    """A chunk that cannot be read as it was written."""

    want: Want
    problem: str  # with the object's name

    def __str__(self) -> str:
        return f"{self.want.tensor!r}: {self.problem}"


class Copies(Protocol):
    """Other places where a chunk may lie."""

    def find(self, id_: bytes) -> Iterable[tuple[Storage, Chunk]]:
        """Copies of it, wherever; the one that was found damaged may be among them."""


class Fetcher:
    """Reads from one store, and where that is damaged from other copies."""

    def __init__(
        self, storage: Storage, copies: Copies | None = None, threads: int = THREADS
    ) -> None:
        self._storage, self._copies, self._threads = storage, copies, threads
        self.healed: list[Damage] = []  # read from another copy

    def fetch(
        self, wants: Iterable[Want], on_batch: Callable[[int], None] | None = None
    ) -> list[Damage]:
        """Read all `wants`, in any order; what could not be read from anywhere.

        Args:
            on_batch: told the raw bytes of each batch that is done, for progress.

        Raises:
            StoreError: the store is out of reach.
        """
        damaged: list[Damage] = []
        with ThreadPoolExecutor(self._threads, "fetch") as pool:
            for size, problems in pool.map(self._fetch_batch, batches(wants)):
                damaged += problems
                if on_batch:
                    on_batch(size)
        return damaged

    def one(self, chunk: Chunk, dtype: str, tensor: str) -> Buffer:
        """The content of one chunk.

        Raises:
            DamagedError: it cannot be read from anywhere.
        """
        got: list[Buffer] = []
        _, damaged = self._fetch_batch([Want(chunk, dtype, tensor, got.append)])
        if damaged:
            raise DamagedError(str(damaged[0]))
        return got[0]

    def _fetch_batch(self, batch: Sequence[Want]) -> tuple[int, list[Damage]]:
        stored = self._read_ranges(batch)
        damaged = []
        for want in batch:
            try:
                raw = content(want.chunk, want.dtype, lambda chunk: stored[chunk.place])
            except DamagedError as error:
                damage = Damage(want, str(error))
                found = self._again(want)
                if found is None and (found := self._from_copy(want)) is not None:
                    self.healed.append(damage)
                if found is None:
                    damaged.append(damage)
                    continue
                raw = found
            want.use(raw)
        return sum(want.chunk.raw_length for want in batch), damaged

    def _read_ranges(self, batch: Sequence[Want]) -> dict[Place, Buffer | DamagedError]:
        """The stored bytes of every chunk and base, or why there are none, by place."""
        stored: dict[Place, Buffer | DamagedError] = {}
        for group in ranges(chunk for want in batch for chunk in _chain(want.chunk)):
            stored.update(self.read_group(group))
        return stored

    def read_group(self, group: Sequence[Chunk]) -> dict[Place, Buffer | DamagedError]:
        """The stored bytes of chunks that lie close together in one pack, by place."""
        start = group[0].offset
        length = max(chunk.offset + chunk.length for chunk in group) - start
        try:
            data = memoryview(self._storage.get_range(pack_key(group[0].pack), start, length))
        except (FileNotFoundError, DamagedError) as error:
            if len(group) == 1:
                return {group[0].place: _read_problem(group[0], error)}
            # some of them may be there
            return {k: v for chunk in group for k, v in self.read_group([chunk]).items()}
        return {c.place: data[c.offset - start :][: c.length] for c in group}

    def _again(self, want: Want) -> Buffer | None:
        """The content, if what was damaged was so on its way only."""
        try:
            raw = content(want.chunk, want.dtype, self._stored)
        except DamagedError:
            return None
        logger.warning("%s: damaged on its way, whole when read again", _place(want.chunk))
        return raw

    def _from_copy(self, want: Want) -> Buffer | None:
        if self._copies is None:
            return None
        for storage, chunk in self._copies.find(want.chunk.id):
            other = Fetcher(storage, threads=1)
            try:
                return content(chunk, want.dtype, other._stored)
            except DamagedError:
                continue
        return None

    def _stored(self, chunk: Chunk) -> Buffer | DamagedError:
        return self.read_group([chunk])[chunk.place]


def content(chunk: Chunk, dtype: str, stored: Callable[[Chunk], Buffer | DamagedError]) -> Buffer:
    """Decode a chunk, its bases first, and check it against its id.

    Raises:
        DamagedError: it is not what was written; names the object.
    """
    raw = _unchecked(chunk, dtype, stored)
    if chunk_id(dtype, raw) != chunk.id:
        if chunk.base is not None:
            content(chunk.base, dtype, stored)  # raises if it is the base that is damaged
        raise DamagedError(f"{_place(chunk)}: the bytes do not match their hash")
    return raw


def _unchecked(
    chunk: Chunk, dtype: str, stored: Callable[[Chunk], Buffer | DamagedError]
) -> Buffer:
    data = stored(chunk)
    if isinstance(data, DamagedError):
        raise data
    base = None if chunk.base is None else _unchecked(chunk.base, dtype, stored)
    return _decode(chunk, dtype, data, base)


def check_stored(chunk: Chunk, data: Buffer) -> None:
    """Check stored bytes without decoding them.

    Raises:
        DamagedError: they do not match their checksum.
    """
    if checksum(data) != chunk.checksum:
        raise DamagedError(f"{_place(chunk)}: the stored bytes do not match their checksum")


def _decode(chunk: Chunk, dtype: str, data: Buffer, base: Buffer | None) -> Buffer:
    if chunk.codec is Codec.RAW:
        return data
    kind = element(dtype)
    out = bytearray(chunk.raw_length)
    try:
        decode(
            chunk.codec,
            data,
            memoryview(out),
            Layout(kind.word, kind.is_float, kind.itemsize),
            base,
        )
    except (DamagedError, FormatError) as error:
        raise type(error)(f"{_place(chunk)}: {error}") from error
    return out


def _chain(chunk: Chunk) -> Iterator[Chunk]:
    at: Chunk | None = chunk
    while at is not None:
        yield at
        at = at.base


def batches(wants: Iterable[Want], size: int = BATCH) -> Iterator[list[Want]]:
    """Groups of wants that lie close together, each of about `size` decoded bytes."""
    batch: list[Want] = []
    filled = 0
    for want in sorted(wants, key=lambda w: (w.chunk.pack, w.chunk.offset)):
        cost = sum(chunk.raw_length for chunk in _chain(want.chunk))
        if batch and filled + cost > size:
            yield batch
            batch, filled = [], 0
        batch.append(want)
        filled += cost
    if batch:
        yield batch


def ranges(chunks: Iterable[Chunk], gap: int = GAP) -> Iterator[list[Chunk]]:
    """Chunks grouped into ranges to read at once: of one pack, with little between them."""
    unique = {(c.pack, c.offset, c.length): c for c in chunks}
    group: list[Chunk] = []
    for _, chunk in sorted(unique.items(), key=lambda pair: pair[0]):
        if group and not _joins(group, chunk, gap):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _joins(group: Sequence[Chunk], chunk: Chunk, gap: int) -> bool:
    first, last = group[0], group[-1]
    between = chunk.offset - (last.offset + last.length)
    span = last.offset + last.length - first.offset
    return chunk.pack == first.pack and between <= min(gap, span // 16)


def _read_problem(chunk: Chunk, error: Exception) -> DamagedError:
    if isinstance(error, FileNotFoundError):
        return DamagedError(f"{_place(chunk)}: the pack is not there")
    return DamagedError(f"{_place(chunk)}: {error}")


def _place(chunk: Chunk) -> str:
    return f"{pack_key(chunk.pack)} at byte {chunk.offset}"
