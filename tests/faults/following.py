"""What processes do beside a follower that is killed: they save, prune and read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.follower.follower import Follower
from checkpointing.format.manifest import ManifestHeader
from checkpointing.retention import Last
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write

RUN = "followed"
ROWS, COLUMNS = 96, 128
_BASE = np.random.default_rng(0).integers(0, 1 << 16, (3, ROWS, COLUMNS), "u2")


def weights_at(step: int) -> dict[str, NDArray[np.uint16]]:
    """The weights of a step, in bfloat16: one tensor stays, of the others a few numbers change."""
    weights = {f"layer{number}": each.copy() for number, each in enumerate(_BASE)}
    for number in (1, 2):
        weights[f"layer{number}"].reshape(-1)[: step * 7 : number] += np.uint16(step)
    return weights


def save_steps(url: str, options: Mapping[str, Any], first: int, last: int, wait_s: float) -> None:
    """Save some steps, in two parts each, as two ranks do."""
    store = Store.open(url, options=options, create=True)
    chosen = WriteOptions(threads=1, encoder=ChunkEncoder(depth=2))
    with Session(store, RUN) as session:
        known = [RunChunkIndex(store, RUN) for _ in range(2)]
        for step in range(first, last + 1):
            save = session.begin(step)
            for rank, its in enumerate(known):
                part = write(store, save, _pieces(step, rank), {}, its.index(), chosen)
                write_part(store, ManifestHeader(save, time.time(), 2), rank, part)
                its.committed(save, part.tables, part.packs)
            commit(store, save, 2, check=session.check)
            session.end(save.manifest())
            time.sleep(wait_s)
    store.close()


def prune_until(url: str, options: Mapping[str, Any], last: int) -> None:
    """Keep the newest step alone, until this step is there."""
    store = Store.open(url, options=options)
    while True:
        prune(store, RUN, [Last(1)], grace_s=0)
        if any(stored.save.step >= last for stored in store.manifests(RUN)):
            break
    store.close()


def follow_into(url: str, options: Mapping[str, Any], into: str, last: int) -> None:
    """Follow until this step."""
    with Follower(url, run=RUN, into=into, interval_s=0.01, options=options) as follower:
        if follower.step != last:
            next(taken for taken in follower.steps() if taken.step == last)


def _pieces(step: int, rank: int) -> list[TensorPiece]:
    half = ROWS // 2
    rows = slice(rank * half, (rank + 1) * half)
    return [
        TensorPiece(f"model/{name}", "bfloat16", (ROWS, COLUMNS), (rows.start, 0), array[rows])
        for name, array in weights_at(step).items()
    ]
