"""A storage that can be renewed with other options, such as credentials that have not expired."""

from __future__ import annotations

from checkpointing.storage import Storage
from checkpointing.storage.forwarding_storage import ForwardingStorage


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
