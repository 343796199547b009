"""Small saves for the tests: what a trainer does, without torch and without processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.format.tiles import Box, whole
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.inspection import integrity_check
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write

Values = Mapping[str, int]  # what each tensor is filled with; equal values are equal chunks
SIZE = 24  # elements
PLAIN = WriteOptions(threads=1, encoder=ChunkEncoder(encoder=None))


def array(value: int) -> NDArray[np.float32]:
    """The content that stands for `value`."""
    return np.random.default_rng(value).standard_normal(SIZE).astype(np.float32)


def pieces(values: Values, rank: int = 0, ranks: int = 1) -> list[TensorPiece]:
    """The rows that one rank holds of every tensor."""
    start, end = rank * SIZE // ranks, (rank + 1) * SIZE // ranks
    return [
        TensorPiece(name, "float32", (SIZE,), (start,), array(value)[start:end])
        for name, value in values.items()
    ]


def save(
    session: Session,
    known: Sequence[RunChunkIndex],
    step: int,
    values: Values,
    options: WriteOptions = PLAIN,
) -> SaveId:
    """Save and commit one step; `known` has one entry per rank. Raises as its parts do."""
    store, made = session.store, session.begin(step)
    try:
        header = ManifestHeader(made, float(step), len(known), {"loss": 1.0 / (step + 1)})
        written = []
        for rank, its in enumerate(known):
            mine = pieces(values, rank, len(known))
            index = its.index(tensors=values)
            written.append(write(store, made, mine, {"extra/step": step}, index, options))
            write_part(store, header, rank, written[-1])
        commit(store, made, len(known), check=session.check)
    finally:
        session.end(made.manifest())
    for its, one in zip(known, written, strict=True):
        its.committed(made, one.tables, one.packs)
    return made


def save_all(
    store: Store,
    run: str,
    steps: Mapping[int, Values],
    ranks: int = 1,
    options: WriteOptions = PLAIN,
) -> list[SaveId]:
    """Save some steps in one session."""
    with Session(store, run) as session:
        known = [RunChunkIndex(store, run) for _ in range(ranks)]
        return [save(session, known, step, values, options) for step, values in steps.items()]


def contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    """All tensors of a checkpoint, by name."""
    specs = checkpoint.tensors()
    return {
        name: checkpoint.read(name, Box(*_sides(whole(spec.shape)))).tobytes()
        for name, spec in specs.items()
    }


def expected(values: Values) -> dict[str, bytes]:
    return {name: array(value).tobytes() for name, value in values.items()}


def problems(store: Store) -> list[str]:
    """What is wrong with any checkpoint of a store, by a full verification."""
    found, damaged = catalog.committed(store)
    texts = [f"{save.id}: {text}" for save, text in damaged.items()]
    return texts + [str(p) for one in found for p in integrity_check.verify(store, one, "full")]


def _sides(box: Box) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return box.offsets, box.sizes
