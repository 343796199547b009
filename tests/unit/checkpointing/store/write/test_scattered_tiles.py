"""Tiles that are not contiguous, of saves that encode nothing: they are put together once for their
hashes, and again when they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from checkpointing.codec import Codec, EncodeBudget
from checkpointing.errors import DamagedError
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.tiles import tile_shape
from checkpointing.storage import Buffer
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Scheduler

RUN = "a"
SHAPE = (512, 1024)
ROWS, COLUMNS = tile_shape(SHAPE, 4)
RAW = ChunkEncoder(encoder=None)


class WatchedStorage(ModelStorage):
    """A storage that calls `before` when a pack is to be written."""

    def __init__(self, before: Callable[[], None]) -> None:
        super().__init__(World(), Scheduler())
        self._before = before

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        if key.startswith("packs/"):
            self._before()
        super().put(key, parts)


def matrix() -> NDArray[np.float32]:
    """A matrix of random tiles, of which the first is constant and two are equal."""
    data = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    data[:ROWS, :COLUMNS] = 7.0
    data[-ROWS:, -COLUMNS:] = data[:ROWS, -COLUMNS:]
    return data


def fast_store() -> EncodeBudget:
    """The budget of a save whose store takes bytes sooner than they are encoded."""
    budget = EncodeBudget(1 << 30, only_if_slower=True)
    budget.encoded(1 << 20, 1 << 19, 1.0)
    budget.sent(1 << 30, 1.0, is_bound=True)
    return budget


def saved(
    data: NDArray[np.float32],
    encoder: ChunkEncoder,
    budget: EncodeBudget | None = None,
    before: Callable[[], None] = lambda: None,
) -> Checkpoint:
    store = Store.at(WatchedStorage(before), create=True)
    with Session(store, RUN) as session:
        save = session.begin(1)
        piece = TensorPiece("model/w", "float32", SHAPE, (0, 0), data)
        options, index = WriteOptions(encoder=encoder), RunChunkIndex(store, RUN).index()
        made = write(store, save, [piece], {}, index, options, budget)
        write_part(store, ManifestHeader(save, 1.0, 1), 0, made)
        commit(store, save, 1, check=session.check)
        session.end(save.manifest())
    return Checkpoint(store, catalog.newest_first(store, RUN)[0].stored)


def test_a_matrix_has_scattered_tiles() -> None:
    assert SHAPE[0] > ROWS
    assert SHAPE[1] > COLUMNS


@pytest.mark.parametrize("encodes", [False, True], ids=["no encoder", "a store that is faster"])
def test_they_come_back(encodes: bool) -> None:
    checkpoint = saved(matrix(), ChunkEncoder(), fast_store()) if encodes else saved(matrix(), RAW)
    assert checkpoint.read("model/w").tobytes() == matrix().tobytes()
    placed = checkpoint.table("model").chunks["model/w"]
    codecs = {box.offsets: chunk.codec for box, chunk in placed.items()}
    assert codecs.pop((0, 0)) is (Codec.CONSTANT if encodes else Codec.RAW)
    assert set(codecs.values()) == {Codec.RAW}
    assert len({chunk.place for chunk in placed.values()}) == len(placed) - 1


def test_memory_that_changes_between_hash_and_write_is_found_when_it_is_read() -> None:
    data = matrix()
    checkpoint = saved(data, RAW, before=lambda: data.fill(0.0))
    with pytest.raises(DamagedError, match="model/w"):
        checkpoint.read("model/w")
