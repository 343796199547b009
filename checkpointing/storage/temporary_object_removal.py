"""The optional interface of storages in which a writer that dies leaves temporary objects."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsTemporaryRemoval(Protocol):
    """A storage that can remove such objects, as a sweep does; checked by `isinstance(storage,
    SupportsTemporaryRemoval)`."""

    def sweep_temporaries(self, older_than_s: float) -> int:
        """Remove temporary objects of crashed writers. Returns how many there were.

        Args:
            older_than_s: remove only objects that were last written so many seconds ago, by the
                storage's clock. A slower writer loses its file and raises.

        Raises:
            StoreError: see `Storage`.
        """
