"""A store with consecutive saves of one rank, for the benchmarks of the store."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from checkpointing import Checkpoint, Store
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.store.sessions.session import Session
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, WrittenPart, write

Arrays = Mapping[str, NDArray[Any]]  # by full name: "model/blocks.0.qkv.weight"


class StoreSaves:
    """One run in a new store: every part of a save except staging and the agreement of ranks."""

    def __init__(self, folder: Path, options: WriteOptions, run: str = "benchmark") -> None:
        self.store = Store.open(folder, create=True)
        self.last: SaveId | None = None
        self._options = options
        self._session = Session(self.store, run)
        self._known = RunChunkIndex(self.store, run)

    def save(self, step: int, pieces: Iterable[TensorPiece]) -> WrittenPart:
        """Announces a save, indexes chunks, writes and commits; the save is durable on return."""
        save = self._session.begin(step)
        index = self._known.index()
        written = write(self.store, save, pieces, {}, index, self._options)
        write_part(self.store, ManifestHeader(save, time.time(), 1, {}), 0, written)
        self._known.committed(save, written.tables, written.packs)
        commit(self.store, save, 1, check=self._session.check)
        self._session.end(save.manifest())
        self.last = save
        return written

    def newest(self) -> Checkpoint:
        """Returns the last save, opened anew, so that nothing of it is in memory."""
        store = Store.open(self.store.url)
        return Checkpoint(store, store.manifests()[0])

    def close(self) -> None:
        self._session.close()
        self.store.close()


def whole_pieces(arrays: Arrays, dtype: str = "float32") -> list[TensorPiece]:
    """Returns each array as a piece that is a whole tensor."""
    return [
        TensorPiece(name, dtype, array.shape, (0,) * array.ndim, array)
        for name, array in arrays.items()
    ]


def bytes_under(folder: Path) -> int:
    """Returns the bytes of all files in a folder and below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def files_under(folder: Path) -> int:
    """Returns the files in a folder and below it."""
    return sum(path.is_file() for path in folder.rglob("*"))
