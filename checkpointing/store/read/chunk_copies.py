"""Finds other copies of a chunk: in other packs of the store, and in other stores."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.chunks import Chunk
from checkpointing.storage import Storage
from checkpointing.store.catalog import committed
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")


class StoreCopies:
    """All chunks of all checkpoints of some stores, by id. Built on the first call of `find`.
    Thread-safe."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores
        self._lock = threading.Lock()
        self._found: dict[bytes, list[tuple[Storage, Chunk]]] | None = None

    def find(self, id_: bytes) -> Iterable[tuple[Storage, Chunk]]:
        """Return the copies of a chunk in all stores."""
        with self._lock:
            if self._found is None:
                self._found = {}
                for storage, chunk in self._all():
                    places = self._found.setdefault(chunk.id, [])
                    if (storage, chunk) not in places:
                        places.append((storage, chunk))
        return self._found.get(id_, [])

    def _all(self) -> Iterator[tuple[Storage, Chunk]]:
        for store in self._stores:
            for found in committed(store)[0]:
                try:
                    tables = [found.document.table(item) for item in found.document.items]
                except FileNotFoundError:
                    continue
                except (DamagedError, FormatError) as error:
                    logger.warning("cannot look for copies in %s: %s", found.stored.key, error)
                    continue
                for table in tables:
                    for chunk in table.all_chunks():
                        yield store.storage, chunk
