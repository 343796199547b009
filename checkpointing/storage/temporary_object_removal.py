"""Storages that leave temporaries behind when a writer dies."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsTemporaryRemoval(Protocol):
    """What prune asks a storage for: `isinstance(storage, SweepsTemporaries)`."""

    def sweep_temporaries(self, older_than_s: float) -> int:
        """Remove what crashed writers left half written; how many there were.

        Args:
            older_than_s: only what was last written so many seconds ago, by the clock of the
                storage. A writer that is slower than this loses its file and raises.

        Raises:
            StoreError: see `Storage`.
        """
