"""Checkpoints of any tensors, saved by any number of ranks, for the tests of du, diff and ckpt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.format.values.json_values import Json
from checkpointing.store.catalog import CatalogEntry, committed
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write

Array = NDArray[Any]
Tensors = Mapping[str, tuple[str, Array]]  # full name -> dtype, elements of that size


def make(
    store: Store,
    step: int,
    tensors: Tensors,
    values: Mapping[str, Json] | None = None,
    *,
    run: str = "demo",
    metrics: Mapping[str, float] | None = None,
    ranks: int = 1,
    commits: bool = True,
    created: float = 1.7e9,
) -> SaveId:
    """Save a checkpoint of which each rank holds some rows of every tensor."""
    with Session(store, run) as session:
        save = session.begin(step)
        index = RunChunkIndex(store, run).index()
        header = ManifestHeader(save, created + step, ranks, metrics or {})
        for rank in range(ranks):
            pieces = [
                p for name, (dtype, a) in tensors.items() for p in _cut(name, dtype, a, rank, ranks)
            ]
            options = WriteOptions(pack_bytes=1 << 20, threads=2)
            mine = values or {} if rank == 0 else {}
            write_part(store, header, rank, write(store, save, pieces, mine, index, options))
        if commits:
            commit(store, save, ranks)
        session.end(save.manifest())
    return save


def _cut(name: str, dtype: str, array: Array, rank: int, ranks: int) -> list[TensorPiece]:
    if not array.ndim:
        return [TensorPiece(name, dtype, (), (), array)] if rank == 0 else []
    start, end = (array.shape[0] * r // ranks for r in (rank, rank + 1))
    if start == end and rank:
        return []
    offsets = (start, *(0 for _ in array.shape[1:]))
    return [TensorPiece(name, dtype, array.shape, offsets, np.ascontiguousarray(array[start:end]))]


def find(store: Store, save: SaveId) -> CatalogEntry:
    return next(f for f in committed(store, save.run)[0] if f.stored.save == save)


def opened(store: Store, save: SaveId) -> Checkpoint:
    return Checkpoint(store, find(store, save).stored)
