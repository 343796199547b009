"""Reads chunks in parallel and in bounded memory: ranges that lie close together are read together,
and content is passed on only after it was decoded and matched its hash or checksum. On request it
is passed on only after that was so for all chunks, and stays in memory until then."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol, Self, TypeAlias

import numpy as np

from checkpointing.codec import Codec
from checkpointing.codec.thread_buffers import thread_buffer
from checkpointing.errors import DamagedError
from checkpointing.format.chunks import Chunk, Place
from checkpointing.format.object_keys import pack_key
from checkpointing.format.packs import MAGIC
from checkpointing.storage import Buffer, Storage
from checkpointing.storage.interface import SupportsReadInto
from checkpointing.store.read.chunk_decoder import ChunkDecoder, HeldChunks, content, where
from checkpointing.store.read.kept_memory import PAGE, KeptMemory, round_up
from checkpointing.store.read.read_batches import (
    batches,
    batches_at_a_time,
    chain,
    in_lists,
    length,
    ranges,
)

logger = logging.getLogger("checkpointing")

BATCH = 16 << 20  # bytes of decoded chunks that one thread has in memory at a time
# The same where small reads are cheap: what stays in the processor's cache of the last level. Each
# batch costs a thread some waiting for the interpreter, so smaller ones take longer.
HOT = 4 << 20
# most such small batches that a thread takes at a time, which are neighbours in a pack
TOGETHER = 8
# most bytes that are read into memory of the thread: a batch of chunks of usual size
BORROWED = 16 << 20
# How much farther into a page bytes lie in memory than in their file. The kernel and numpy take up
# to four times as long for a copy to a place that lies a little farther into a page than its
# source. With this shift a pack's chunks lie at the beginning of cache lines, as tensors do, or a
# little before.
SHIFT = 64 - len(MAGIC)
THREADS = min(8, 2 * (os.cpu_count() or 1))
# The same where small reads are cheap. Such a thread computes most of the time and waits little, so
# more of them than cores only take the interpreter from each other.
FILLING_THREADS = min(8, max(2, os.cpu_count() or 1))


@dataclass(frozen=True)
class ChunkRequest:
    """A chunk to read, and what to do with its content."""

    chunk: Chunk
    dtype: str
    tensor: str  # for messages
    # may run in any thread; its argument is valid during the call only
    use: Callable[[Buffer], None]
    waits: bool = False  # `use` is called by `ChunkFetcher.deliver`, and not while it fetches


@dataclass(frozen=True)
class DamagedChunk:
    """A chunk that cannot be read as it was written."""

    want: ChunkRequest
    problem: str  # names the object

    def __str__(self) -> str:
        return f"{self.want.tensor!r}: {self.problem}"


# a request whose content is checked, and the content
_Checked: TypeAlias = tuple[ChunkRequest, Buffer]


@dataclass(frozen=True)
class _Batch:
    """Chunks that one thread has in memory at a time.

    Attributes:
        groups: ranges of the chunks, and of their bases, that are read together.
        stays: whether the stored bytes themselves stay in memory, as the content of chunks that
            wait.
    """

    wants: Sequence[ChunkRequest]
    groups: Sequence[Sequence[Chunk]]
    stays: bool

    @classmethod
    def of(cls, wants: Sequence[ChunkRequest], held: HeldChunks) -> Self:
        groups = list(ranges(at for want in wants for at in chain(want.chunk, held)))
        stays = all(want.waits and want.chunk.codec is Codec.RAW for want in wants)
        return cls(wants, groups, stays)

    def kept_bytes(self, *, is_filled: bool) -> int:
        """Returns the bytes of memory that what waits needs.

        Args:
            is_filled: whether the storage fills the memory that it is given.
        """
        if not self.stays:
            return sum(round_up(want.chunk.raw_length) for want in self.wants if want.waits)
        size = _room_bytes(self.groups)
        return size if is_filled and size <= BORROWED else 0


class ChunkCopies(Protocol):
    """Finds other places where a chunk may lie."""

    def find(self, id_: bytes) -> Iterable[tuple[Storage, Chunk]]:
        """Return the copies of a chunk; the one that was found damaged may be among them."""


class ChunkFetcher:
    """Reads chunks from one store and, where that is damaged, from other copies. Thread-safe."""

    def __init__(
        self,
        storage: Storage,
        copies: ChunkCopies | None = None,
        threads: int | None = None,
        held: HeldChunks | None = None,
        *,
        by_checksum: bool = False,
    ) -> None:
        """Create the fetcher.

        Args:
            threads: threads that read, decode and check; None: as many as suit the storage.
            held: contents that the caller has, by chunk id; called in any thread. A base among
                them is not read. If it turns out to be damaged, the bases are read after all.
            by_checksum: as of `ChunkDecoder`.
        """
        self._by_checksum = by_checksum
        self._storage, self._copies = storage, copies
        self._held: HeldChunks = held or {}
        self._fills = storage if isinstance(storage, SupportsReadInto) else None
        self._threads = threads or (THREADS if self._fills is None else FILLING_THREADS)
        self.batch_bytes, self._together = (BATCH, 1) if self._fills is None else (HOT, TOGETHER)
        self.healed: list[DamagedChunk] = []  # read from another copy
        self._kept: list[list[_Checked]] = []  # what waits, in lists of neighbours

    def fetch(
        self, wants: Iterable[ChunkRequest], on_batch: Callable[[int], None] | None = None
    ) -> list[DamagedChunk]:
        """Read all `wants`, in any order; return those that could not be read from anywhere. A base
        of several chunks is decoded once, as far as one thread can process them one after the
        other. The content of those that wait stays in memory until `deliver`.

        Args:
            on_batch: called with the raw bytes of completed batches, for progress.

        Raises:
            StoreError: the store is out of reach.
        """
        damaged: list[DamagedChunk] = []
        with ThreadPoolExecutor(self._threads, "fetch") as pool:
            all_ = list(wants)
            cut = batches(all_, lambda want: want.chunk, self.batch_bytes)
            count = sum(want.chunk.raw_length for want in all_) // self.batch_bytes
            together = batches_at_a_time(count, self._threads, self._together)
            for size, problems in pool.map(self._fetch_batches, in_lists(cut, together)):
                damaged += problems
                if on_batch:
                    on_batch(size)
        return damaged

    def one(self, chunk: Chunk, dtype: str, tensor: str) -> Buffer:
        """Return the content of one chunk, in memory of its own.

        Raises:
            DamagedError: it cannot be read from anywhere.
        """
        stored: dict[Place, Buffer | DamagedError] = {}
        for group in ranges(chain(chunk)):
            stored.update(self.read_group(group))
        try:
            return content(chunk, dtype, lambda at: stored[at.place])
        except DamagedError as error:
            damage = DamagedChunk(ChunkRequest(chunk, dtype, tensor, lambda raw: None), str(error))
            found = self._from_copies(damage)
            if found is None:
                raise DamagedError(str(damage)) from error
            return found

    def deliver(self) -> None:
        """Call `use` of everything that waits, in any order. The caller must have found that
        nothing is damaged."""
        kept, self._kept = self._kept, []
        with ThreadPoolExecutor(self._threads, "deliver") as pool:
            for _ in pool.map(_use_all, kept):
                pass

    def _fetch_batches(
        self, taken: Sequence[Sequence[ChunkRequest]]
    ) -> tuple[int, list[DamagedChunk]]:
        found = [_Batch.of(wants, self._held) for wants in taken]
        size = sum(batch.kept_bytes(is_filled=self._fills is not None) for batch in found)
        memory, kept = KeptMemory(size) if size else None, list[_Checked]()
        with nullcontext() if self._fills is None else self._fills.reading_in_order():
            damaged = [one for batch in found for one in self._fetch_batch(batch, memory, kept)]
        if kept:
            self._kept.append(kept)
        return sum(want.chunk.raw_length for batch in taken for want in batch), damaged

    def _fetch_batch(
        self, batch: _Batch, memory: KeptMemory | None, kept: list[_Checked]
    ) -> list[DamagedChunk]:
        """
        Args:
            memory: memory for what stays.
            kept: gets what waits.
        """
        stored = self._read_groups(batch.groups, memory if batch.stays else None)
        decoder = ChunkDecoder(
            lambda chunk: stored[chunk.place], room, self._held, by_checksum=self._by_checksum
        )
        damaged = []
        for want in batch.wants:
            try:
                raw = decoder.content(want.chunk, want.dtype)
            except DamagedError as error:
                damage = DamagedChunk(want, str(error))
                found = self._from_copies(damage)
                if found is None:
                    damaged.append(damage)
                    continue
                raw = found
            if not want.waits:
                want.use(raw)
            elif batch.stays or memory is None:
                kept.append((want, raw))
            else:
                kept.append((want, _copied(raw, memory)))
        return damaged

    def borrow(self, chunks: Iterable[Chunk]) -> Mapping[Place, Buffer | DamagedError]:
        """Return the stored bytes of chunks, or why there are none, by place; they are valid until
        this thread calls this again."""
        return self._read_groups(list(ranges(chunks)))

    def _read_groups(
        self, groups: Sequence[Sequence[Chunk]], memory: KeptMemory | None = None
    ) -> Mapping[Place, Buffer | DamagedError]:
        """Return the stored bytes of the chunks of some ranges, by place.

        Args:
            memory: where they stay; None: they are valid until this thread reads again.
        """
        stored: dict[Place, Buffer | DamagedError] = {}
        for group, into in zip(groups, self._buffers(groups, memory), strict=True):
            stored.update(self.read_group(group, into))
        return stored

    def _buffers(
        self, groups: Sequence[Sequence[Chunk]], memory: KeptMemory | None
    ) -> Iterator[memoryview | None]:
        """Yield memory for each of these ranges; None: the storage allocates memory itself, once it
        has checked that there is so much to read."""
        total = _room_bytes(groups)
        if not self._fills or total > BORROWED:
            yield from (None for _ in groups)
            return
        if memory is not None:
            for group in groups:
                yield memory.take(length(group), (group[0].offset + SHIFT) % PAGE)
            return
        # rounded up, so that it is soon large enough for all batches
        hot = thread_buffer("fetch stored", -(-total // HOT) * HOT)
        at, address = 0, int(hot.__array_interface__["data"][0])
        for group in groups:
            at += (group[0].offset + SHIFT - address - at) % PAGE
            yield hot.data[at : at + length(group)]
            at += length(group)

    def read_group(
        self, group: Sequence[Chunk], into: memoryview | None = None
    ) -> dict[Place, Buffer | DamagedError]:
        """Return the stored bytes of chunks that lie close together in one pack, by place.

        Args:
            into: memory for all bytes from the start of the first chunk to the end of the last.
        """
        start = group[0].offset
        try:
            data = self._read(group[0].pack, start, length(group), into)
        except (FileNotFoundError, DamagedError) as error:
            if len(group) == 1:
                return {group[0].place: _read_problem(group[0], error)}
            # Some of them may exist.
            return {k: v for chunk in group for k, v in self.read_group([chunk]).items()}
        return {c.place: data[c.offset - start :][: c.length] for c in group}

    def _read(self, pack: bytes, start: int, size: int, into: memoryview | None) -> memoryview:
        if into is None or self._fills is None:
            return memoryview(self._storage.get_range(pack_key(pack), start, size))
        self._fills.read_into(pack_key(pack), start, into)
        return into

    def _from_copies(self, damage: DamagedChunk) -> Buffer | None:
        """Return the content of a damaged chunk, read again or from a copy; None if there is no
        intact one."""
        found = self._read_again(damage.want)
        if found is None and (found := self._from_copy(damage.want)) is not None:
            self.healed.append(damage)
        return found

    def _read_again(self, want: ChunkRequest) -> Buffer | None:
        """Return the content if it was damaged only in transit; None otherwise."""
        try:
            raw = content(want.chunk, want.dtype, self._stored)
        except DamagedError:
            return None
        logger.warning("%s: damaged in transit, intact when read again", where(want.chunk))
        return raw

    def _from_copy(self, want: ChunkRequest) -> Buffer | None:
        if self._copies is None:
            return None
        for storage, chunk in self._copies.find(want.chunk.id):
            other = ChunkFetcher(storage, threads=1)
            try:
                return content(chunk, want.dtype, other._stored)
            except DamagedError:
                continue
        return None

    def _stored(self, chunk: Chunk) -> Buffer | DamagedError:
        return self.read_group([chunk])[chunk.place]


def _use_all(checked: list[_Checked]) -> None:
    for want, raw in checked:
        want.use(raw)
    checked.clear()  # its memory is free from now on


def _room_bytes(groups: Iterable[Sequence[Chunk]]) -> int:
    """Returns the bytes of memory into which these ranges can be read, each at its place in a
    page."""
    return sum(length(group) + PAGE for group in groups)


def _copied(raw: Buffer, memory: KeptMemory) -> Buffer:
    held = memory.take(round_up(len(raw)))[: len(raw)]
    np.copyto(np.frombuffer(held, np.uint8), np.frombuffer(raw, np.uint8))  # without the GIL
    return held


def room(depth: int, size: int) -> memoryview:
    """Return memory of this thread for a chunk's content; another one for each number of bases."""
    return thread_buffer(f"fetch decoded {depth}", size).data


def _read_problem(chunk: Chunk, error: Exception) -> DamagedError:
    if isinstance(error, FileNotFoundError):
        return DamagedError(f"{where(chunk)}: the pack does not exist")
    return DamagedError(f"{where(chunk)}: {error}")
