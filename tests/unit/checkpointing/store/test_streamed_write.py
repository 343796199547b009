"""Writing pieces that come in time, through memory that is used again."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from checkpointing.codec import Codec, EncodeBudget, is_store_faster
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.tiles import Box, tile_shape, tiles
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, WrittenPart, write
from tests.unit.checkpointing.store.saves import problems

SHAPE = (1500, 512)
TILE = tile_shape(SHAPE, 4)
WHOLE = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
VALUES = {"extra/step": 3}
# 40 MiB, in 64 tiles that are not contiguous; of few different numbers, so that they compress
LARGE = np.random.default_rng(1).integers(0, 9, (10 << 10, 1 << 10)).astype(np.float32)
ZEROS = np.zeros_like(LARGE)


def empty() -> TensorPiece:
    return TensorPiece("model/none", "float32", (0, 4), (0, 0), np.empty((0, 4), np.float32))


class Arrivals:
    """Bands of rows, each in the same memory as the one before, once that is done with."""

    def __init__(self) -> None:
        self.memory: NDArray[np.float32] = np.empty((2 * TILE[0], SHAPE[1]), np.float32)
        self.left = 0  # bytes that are not done with

    def pieces(self) -> Iterator[TensorPiece | None]:
        yield empty()
        for start in range(0, SHAPE[0], 2 * TILE[0]):
            while self.left:
                yield None
            band = WHOLE[start : start + 2 * TILE[0]]
            data = self.memory[: len(band)]
            data[:] = band
            self.left = data.nbytes
            yield TensorPiece("model/w", "float32", SHAPE, (start, 0), data)

    def done(self, size: int) -> None:
        self.left -= size
        assert self.left >= 0
        if not self.left:
            self.memory[:] = np.nan


def save(
    store: Store, step: int, options: WriteOptions, known: RunChunkIndex, arrivals: Arrivals | None
) -> WrittenPart:
    """Of the state that arrives, or that lies there as a whole."""
    with Session(store, "r") as session:
        made = session.begin(step)
        if arrivals is None:
            whole = [empty(), TensorPiece("model/w", "float32", SHAPE, (0, 0), WHOLE)]
            written = write(store, made, whole, VALUES, known.index(), options)
        else:
            coming, done = arrivals.pieces(), arrivals.done
            written = write(store, made, coming, VALUES, known.index(), options, done=done)
        write_part(store, ManifestHeader(made, float(step), 1, {}), 0, written)
        commit(store, made, 1, check=session.check)
    known.committed(made, written.tables, written.packs)
    return written


@pytest.mark.parametrize("encoder", [ChunkEncoder(), ChunkEncoder(None)], ids=["encoded", "raw"])
@pytest.mark.parametrize("pack_bytes", [64 << 20, 300_000])
def test_what_arrives_is_written_as_if_it_had_been_there(
    tmp_path: Path, encoder: ChunkEncoder, pack_bytes: int
) -> None:
    store = Store.open(tmp_path, create=True)
    known = RunChunkIndex(store, "r")
    options = WriteOptions(pack_bytes=pack_bytes, threads=2, encoder=encoder)
    first = save(store, 1, options, known, Arrivals())
    second = save(store, 2, options, known, None)
    assert first.new_bytes > 0
    assert second.new_bytes == 0, "the same chunks"
    assert first.raw_bytes == second.raw_bytes == WHOLE.nbytes
    assert first.tables == second.tables
    assert set(first.tables["model"].tensors) == {"model/w", "model/none"}
    assert first.tables["extra"].values == VALUES
    boxes = list(first.tables["model"].chunks["model/w"])
    assert sorted(boxes) == sorted(tiles(Box((0, 0), SHAPE), TILE))
    assert problems(store) == []


def test_no_more_is_asked_for_than_there_is_memory_for(tmp_path: Path) -> None:
    store = Store.open(tmp_path, create=True)
    arrivals = Arrivals()
    save(
        store,
        1,
        WriteOptions(threads=2, encoder=ChunkEncoder(None)),
        RunChunkIndex(store, "r"),
        arrivals,
    )
    assert arrivals.left == 0
    assert np.isnan(arrivals.memory).all()


def scattered(store: Store, budget: EncodeBudget | None, encoder: ChunkEncoder) -> WrittenPart:
    """A save of a tensor whose tiles are not contiguous, and of one that is constant."""
    whole = [
        TensorPiece("model/w", "float32", LARGE.shape, (0, 0), LARGE),
        TensorPiece("model/zeros", "float32", ZEROS.shape, (0, 0), ZEROS),
    ]
    options = WriteOptions(pack_bytes=4 << 20, threads=2, encoder=encoder)
    with Session(store, "r") as session:
        made = session.begin(1)
        index = RunChunkIndex(store, "r").index()
        written = write(store, made, whole, VALUES, index, options, budget)
        write_part(store, ManifestHeader(made, 1.0, 1, {}), 0, written)
        commit(store, made, 1, check=session.check)
    assert problems(store) == []
    return written


def test_a_raw_save_takes_little_memory_beside_the_state(tmp_path: Path) -> None:
    store = Store.open(tmp_path, create=True)
    tracemalloc.start()
    try:
        written = scattered(store, None, ChunkEncoder(None))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written.new_bytes > LARGE.nbytes
    assert peak < LARGE.nbytes // 2  # three packs are written at a time, 4 MiB of each


def test_while_the_store_is_faster_probes_and_constants_are_encoded(tmp_path: Path) -> None:
    store = Store.open(tmp_path, create=True)
    budget = EncodeBudget(2 * LARGE.nbytes, only_if_slower=True)
    budget.encoded(1 << 20, 1 << 19, 1.0)
    budget.sent(1 << 30, 1e-3, is_bound=True)
    assert is_store_faster(budget.outlook())
    tables = scattered(store, budget, ChunkEncoder()).tables["model"].chunks
    assert {chunk.codec for chunk in tables["model/zeros"].values()} == {Codec.CONSTANT}
    codecs = [chunk.codec for chunk in tables["model/w"].values()]
    assert sum(codec is not Codec.RAW for codec in codecs) == 1, "one of 64"
