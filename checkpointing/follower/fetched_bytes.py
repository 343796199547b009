"""Counts the bytes that are read from a storage."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import TypeVar

from checkpointing.storage.forwarding_storage import ForwardingStorage
from checkpointing.storage.interface import Buffer, Storage, SupportsReadInto

T = TypeVar("T", bytes, Buffer)


class CountedStorage(ForwardingStorage):
    """Forwards all calls and counts the bytes of objects that were read, by any thread. Listings
    do not count."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str) -> bytes:
        return self._counted(super().get(key))

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return self._counted(super().get_range(key, start, length))

    def _counted(self, data: T) -> T:
        self._count(len(data))
        return data

    def _count(self, size: int) -> None:
        with self._lock:
            self.bytes += size


class CountedFileStorage(CountedStorage):
    """The same, of a storage that reads into given memory."""

    def __init__(self, storage: Storage, fills: SupportsReadInto) -> None:
        super().__init__(storage)
        self._fills = fills

    def reading_in_order(self) -> AbstractContextManager[None]:
        return self._fills.reading_in_order()

    def read_into(self, key: str, start: int, into: memoryview) -> None:
        self._fills.read_into(key, start, into)
        self._count(len(into))


def counted(storage: Storage) -> CountedStorage:
    """Return a storage that counts what is read from `storage`."""
    if isinstance(storage, SupportsReadInto):
        return CountedFileStorage(storage, storage)
    return CountedStorage(storage)
