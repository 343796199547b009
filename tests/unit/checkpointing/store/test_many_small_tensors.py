"""What is done for each of very many small tensors does not grow with their number."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np

from checkpointing.codec import Codec
from checkpointing.format.box_coverage import first_gap, gap
from checkpointing.format.manifest import ManifestHeader
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_encoding import SMALL
from checkpointing.store.write.chunk_index import ChunkIndex, RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write

COUNT = 600


def _save(session: Session, known: RunChunkIndex, step: int, size: int, value: float) -> None:
    """Tensors of `size` floats, which are the same throughout but for the first of them."""
    save = session.begin(step)
    data = np.full(size, value, np.float32)
    pieces = [
        TensorPiece(f"m/layer{i}", "float32", (size,), (0,), data + np.float32(i))
        for i in range(COUNT)
    ]
    written = write(session.store, save, pieces, {}, known.index(), WriteOptions(threads=1))
    write_part(session.store, ManifestHeader(save, float(step), 1), 0, written)
    commit(session.store, save, 1, check=session.check)
    session.end(save.manifest())
    known.committed(save, written.tables, written.packs)


def test_a_base_that_is_asked_for_has_few_others_looked_for(tmp_path: Path) -> None:
    """Constants are never relative to what was there before, and ask for it all the same."""
    store = Store.open(tmp_path, create=True)
    with Session(store, "r") as session:
        known = RunChunkIndex(store, "r")
        _save(session, known, 1, 1024, 0.5)
        with mock.patch.object(ChunkIndex, "at", autospec=True, side_effect=ChunkIndex.at) as at:
            _save(session, known, 2, 1024, 0.25)
    assert at.call_count < 3 * COUNT


def test_chunks_that_no_codec_can_help_are_stored_raw_and_come_back(tmp_path: Path) -> None:
    size = SMALL // 4 - 1  # floats
    store = Store.open(tmp_path, create=True)
    with Session(store, "r") as session:
        known = RunChunkIndex(store, "r")
        for step in (1, 2):
            _save(session, known, step, size, step / 4)
    checkpoint = Checkpoint(store, newest_first(store, "r")[0].stored)
    chunks = [
        chunk for placed in checkpoint.table("m").chunks.values() for chunk in placed.values()
    ]
    assert {(chunk.codec, chunk.base) for chunk in chunks} == {(Codec.RAW, None)}
    for i in (0, 1, COUNT - 1):
        assert (checkpoint.read(f"m/layer{i}").view(np.float32) == np.float32(0.5 + i)).all()


def test_a_commit_compares_the_boxes_of_all_tensors_at_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path, create=True)
    with (
        Session(store, "r") as session,
        mock.patch("checkpointing.format.item_table.first_gap", side_effect=first_gap) as looks,
        mock.patch("checkpointing.format.item_table.gap", side_effect=gap) as alone,
    ):
        _save(session, RunChunkIndex(store, "r"), 1, 4, 1.0)
    assert looks.call_count < 4
    assert alone.call_count == 0
