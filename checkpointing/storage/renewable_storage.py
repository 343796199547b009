"""A storage that goes on with other options, such as credentials that have not expired yet."""

from __future__ import annotations

from checkpointing.storage import Storage
from checkpointing.storage.forwarding_storage import ForwardingStorage


class RenewableStorage(ForwardingStorage):
    """Hands everything on to a storage, which can be changed for another one of the same place
    while it is used: what is under way ends by the old one. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._former: list[Storage] = []

    def renew(self, storage: Storage) -> None:
        """Use this one from now on; it is closed with this."""
        self._former.append(self._storage)
        self._storage = storage

    def close(self) -> None:
        for storage in self._former:
            storage.close()
        super().close()
