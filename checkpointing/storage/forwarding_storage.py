"""Storages that wrap another one: the base class, and one that can be renewed with other options,
such as credentials that have not expired."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from checkpointing.storage.interface import Buffer, ObjectInfo, Storage, SupportsTemporaryRemoval


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


class RenewableStorage(ForwardingStorage):
    """Forwards all calls to a storage that can be replaced, while in use, by another one for the
    same place. Calls in progress are completed by the old one. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._former: list[Storage] = []

    def renew(self, storage: Storage) -> None:
        """Use this storage from now on; `close` closes it, too."""
        self._former.append(self._storage)
        self._storage = storage

    def close(self) -> None:
        for storage in self._former:
            storage.close()
        super().close()
