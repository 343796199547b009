"""Checkpoints of any tensors, saved by any number of ranks, for the tests of du, diff and ckpt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.manifest import Header
from checkpointing.format.names import Save
from checkpointing.store.catalog import Found, committed
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.commit import commit, write_part
from checkpointing.store.index import Known
from checkpointing.store.session import Session
from checkpointing.store.store import Store
from checkpointing.store.writer import Options, Piece, write
from checkpointing.values import Json

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
) -> Save:
    """Save a checkpoint of which each rank holds some rows of every tensor."""
    with Session(store, run) as session:
        save = session.begin(step)
        index = Known(store, run).index()
        header = Header(save, created + step, ranks, metrics or {})
        for rank in range(ranks):
            pieces = [
                p for name, (dtype, a) in tensors.items() for p in _cut(name, dtype, a, rank, ranks)
            ]
            options = Options(pack_bytes=1 << 20, threads=2)
            mine = values or {} if rank == 0 else {}
            write_part(store, header, rank, write(store, save, pieces, mine, index, options))
        if commits:
            commit(store, save, ranks)
        session.end(save.manifest())
    return save


def _cut(name: str, dtype: str, array: Array, rank: int, ranks: int) -> list[Piece]:
    if not array.ndim:
        return [Piece(name, dtype, (), (), array)] if rank == 0 else []
    start, end = (array.shape[0] * r // ranks for r in (rank, rank + 1))
    if start == end and rank:
        return []
    offsets = (start, *(0 for _ in array.shape[1:]))
    return [Piece(name, dtype, array.shape, offsets, np.ascontiguousarray(array[start:end]))]


def find(store: Store, save: Save) -> Found:
    return next(f for f in committed(store, save.run)[0] if f.stored.save == save)


def opened(store: Store, save: Save) -> Checkpoint:
    return Checkpoint(store, find(store, save).stored)
