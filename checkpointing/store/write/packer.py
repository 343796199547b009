"""Fills packs with chunks and uploads them, a few at a time."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from checkpointing.codec import Codec, EncodeBudget
from checkpointing.format.chunks import Chunk, checksum
from checkpointing.format.object_keys import new_pack, pack_key
from checkpointing.format.packs import MAGIC, footer
from checkpointing.storage import Storage
from checkpointing.storage.lazy_parts import LazyPart, LazyParts, Part, part_size
from checkpointing.store.write.upload_clock import UploadClock

PACK_BYTES = 64 << 20  # large enough to keep objects few, small enough for one request each
# packs that are uploaded at a time; with the one being filled, what a save holds in memory, except
# `LazyPart`
UPLOADS = 3


class ChunkPacker:
    """Writes chunks of one save into packs. Not thread-safe. It is a context manager that waits for
    its uploads."""

    def __init__(
        self,
        storage: Storage,
        session: str,
        pack_bytes: int = PACK_BYTES,
        uploads: int = UPLOADS,
        budget: EncodeBudget | None = None,
    ) -> None:
        self._storage, self._session, self._pack_bytes = storage, session, pack_bytes
        self._uploads, self._budget = uploads, budget
        self._last_s = time.monotonic()  # when the last upload ended
        self._clock = UploadClock(uploads)
        self._pool = ThreadPoolExecutor(uploads, "upload")
        self._pending: deque[Future[None]] = deque()
        self.packs: dict[bytes, int] = {}  # packs begun, and their sizes; durable after finish()
        self._begin()

    def add(
        self,
        id_: bytes,
        stored: Part,
        raw_length: int,
        codec: Codec,
        base: Chunk | None,
        known_checksum: int | None = None,
    ) -> Chunk:
        """Append a chunk; `stored` must not change before `finish`.

        Args:
            known_checksum: the checksum of `stored`; None: it is computed here.

        Raises:
            StoreError: an upload failed.
        """
        size = part_size(stored)
        if self._filled + size > self._pack_bytes and self._chunks:
            self._upload()
        if known_checksum is None:
            known_checksum = checksum(stored.make() if isinstance(stored, LazyPart) else stored)
        chunk = Chunk(
            id=id_,
            pack=self._pack,
            offset=self._filled,
            length=size,
            raw_length=raw_length,
            codec=codec,
            checksum=known_checksum,
            base=base,
        )
        self._chunks.append(chunk)
        self._parts.append(stored)
        self._filled += size
        return chunk

    def finish(self) -> None:
        """Block until everything is durable.

        Raises:
            StoreError: an upload failed.
        """
        if self._chunks:
            self._upload()
        self._wait_for_uploads(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)

    def _begin(self) -> None:
        self._pack = new_pack(self._session)
        self._chunks: list[Chunk] = []
        self._parts: list[Part] = [MAGIC]
        self._filled = len(MAGIC)

    def _upload(self) -> None:
        end = footer(self._chunks)
        self.packs[self._pack] = self._filled + len(end)
        self._wait_for_uploads(self._uploads - 1)
        raw_bytes = sum(chunk.raw_length for chunk in self._chunks)
        job = self._pool.submit(self._put, self._pack, LazyParts([*self._parts, end]), raw_bytes)
        self._pending.append(job)
        self._begin()

    def _wait_for_uploads(self, most: int) -> None:
        """Block until no more than `most` uploads are left."""
        while len(self._pending) > most:
            with self._clock.waiting():
                self._pending.popleft().result()

    def _put(self, pack: bytes, parts: LazyParts, raw_bytes: int) -> None:
        self._clock.begin()
        self._storage.put(pack_key(pack), parts)
        stored = parts.nbytes
        sent = self._clock.end(stored)
        if self._budget is not None:
            last_s, self._last_s = self._last_s, time.monotonic()
            self._budget.written(raw_bytes, stored, self._last_s - last_s)
            if sent is not None:
                self._budget.sent(sent.bytes, sent.seconds, is_bound=sent.is_bound)
