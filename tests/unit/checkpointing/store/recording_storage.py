"""Storages that remember which ranges were read of them, and what was listed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from checkpointing.storage import Buffer, ObjectInfo, Storage
from checkpointing.storage.forwarding_storage import ForwardingStorage


class Recording:
    """A `Storage`."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.reads: list[tuple[str, int, int]] = []  # key, start, length
        self.before: Callable[[str], object] = lambda key: None  # called before every read
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self.inner.url

    def of_packs(self) -> list[tuple[str, int, int]]:
        """The reads of packs; and forget them."""
        with self._lock:
            found = [read for read in self.reads if read[0].startswith("packs/")]
            self.reads.clear()
        return found

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        self.before(key)
        with self._lock:
            self.reads.append((key, start, length))
        return self.inner.get_range(key, start, length)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self.inner.put(key, parts)

    def create(self, key: str, data: bytes) -> bool:
        return self.inner.create(key, data)

    def replace(self, key: str, data: bytes) -> None:
        self.inner.replace(key, data)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def list(self, prefix: str) -> list[ObjectInfo]:
        return self.inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self.inner.delete(keys)

    def close(self) -> None:
        self.inner.close()


class ListCounter(ForwardingStorage):
    """A storage that remembers which prefixes were listed, and whose next listing can be made to
    miss some objects."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.listed: list[str] = []
        self.missed: set[str] = set()

    def list(self, prefix: str) -> list[ObjectInfo]:
        self.listed.append(prefix)
        missed, self.missed = self.missed, set()
        return [entry for entry in super().list(prefix) if entry.key not in missed]
