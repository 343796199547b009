"""Looks chunks up by content in columns: no objects are created for chunks that are never asked
for."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.chunk_columns import ChunkColumns
from checkpointing.format.chunks import Chunk

_KEY = 8  # bytes of an id that are looked up; a hit is compared in full


class ChunkLookup:
    """The chunks of some columns that may be referred to safely."""

    def __init__(self, columns: ChunkColumns, condemned: Collection[bytes]) -> None:
        """Index the columns.

        Args:
            condemned: packs marked for deletion. A chunk in one of them is not safe, nor is one
                that is relative to it.
        """
        self._columns = columns
        rows = np.flatnonzero(~_unsafe(columns, condemned))
        keys = np.ascontiguousarray(columns["id"][rows, :_KEY]).view("<u8").reshape(-1)
        order = np.argsort(keys, kind="stable")
        self._rows, self._keys = rows[order], keys[order]

    def find(self, id_: bytes) -> Chunk | None:
        """Return the first chunk with this content."""
        key = np.frombuffer(id_, "<u8", 1)
        low, end = (int(np.searchsorted(self._keys, key, side)[0]) for side in ("left", "right"))
        for row in self._rows[low:end]:
            if self._columns["id"][row].tobytes() == id_:
                return self._columns.chunks(np.array([row]))[0]
        return None


def _unsafe(columns: ChunkColumns, condemned: Collection[bytes]) -> NDArray[np.bool_]:
    is_condemned = np.array([pack in condemned for pack in columns.packs], bool)
    found = is_condemned[columns["pack"]] if len(columns) else np.zeros(0, bool)
    bases = columns["base"].astype(np.int64)
    has_base = np.flatnonzero(bases >= 0)
    while True:
        more = has_base[found[bases[has_base]] & ~found[has_base]]
        if not len(more):
            return found
        found[more] = True
