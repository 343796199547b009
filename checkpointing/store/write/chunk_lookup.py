"""Chunks by their content, of columns: nothing is made of those that nobody asks for."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.chunk_columns import ChunkColumns
from checkpointing.format.chunks import Chunk

_KEY = 8  # bytes of an id that it is looked up by; all of them are compared then


class ChunkLookup:
    """Those of some columns that are safe to refer to."""

    def __init__(self, columns: ChunkColumns, condemned: Collection[bytes]) -> None:
        """
        Args:
            condemned: packs. A chunk in one of them is not safe, nor is what is relative to it.
        """
        self._columns = columns
        rows = np.flatnonzero(~_unsafe(columns, condemned))
        keys = np.ascontiguousarray(columns["id"][rows, :_KEY]).view("<u8").reshape(-1)
        order = np.argsort(keys, kind="stable")
        self._rows, self._keys = rows[order], keys[order]

    def find(self, id_: bytes) -> Chunk | None:
        """The first chunk of this content."""
        key = np.frombuffer(id_, "<u8", 1)
        low, end = (int(np.searchsorted(self._keys, key, side)[0]) for side in ("left", "right"))
        for row in self._rows[low:end]:
            if self._columns["id"][row].tobytes() == id_:
                return self._columns.chunks(np.array([row]))[0]
        return None


def _unsafe(columns: ChunkColumns, condemned: Collection[bytes]) -> NDArray[np.bool_]:
    doomed = np.array([pack in condemned for pack in columns.packs], bool)
    found = doomed[columns["pack"]] if len(columns) else np.zeros(0, bool)
    bases = columns["base"].astype(np.int64)
    has_base = np.flatnonzero(bases >= 0)
    while True:
        more = has_base[found[bases[has_base]] & ~found[has_base]]
        if not len(more):
            return found
        found[more] = True
