"""The base class of storages that wrap another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkpointing.storage.interface import Buffer, ObjectInfo, Storage
from checkpointing.storage.temporary_object_removal import SupportsTemporaryRemoval


class ForwardingStorage:
    """Forwards all calls to `storage`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    @property
    def url(self) -> str:
        return self._storage.url

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self._storage.put(key, parts)

    def create(self, key: str, data: bytes) -> bool:
        return self._storage.create(key, data)

    def replace(self, key: str, data: bytes) -> None:
        self._storage.replace(key, data)

    def get(self, key: str) -> bytes:
        return self._storage.get(key)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return self._storage.get_range(key, start, length)

    def list(self, prefix: str) -> list[ObjectInfo]:
        return self._storage.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._storage.delete(keys)

    def sweep_temporaries(self, older_than_s: float) -> int:
        """As `SupportsTemporaryRemoval`; returns 0 if the storage leaves no temporary objects."""
        storage = self._storage
        if not isinstance(storage, SupportsTemporaryRemoval):
            return 0
        return storage.sweep_temporaries(older_than_s)

    def close(self) -> None:
        self._storage.close()
