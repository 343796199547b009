"""How fast a storage takes uploads, of which some run at a time."""

from __future__ import annotations

import numpy as np

from checkpointing.codec import EncodeBudget
from checkpointing.format.object_keys import SaveId
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write
from checkpointing.store.write.upload_clock import SentBytes, UploadClock
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Scheduler

MIB = 1 << 20


class Uploads:
    """Uploads at times that the test gives."""

    def __init__(self, most: int) -> None:
        self.now_s = 0.0
        self.clock = UploadClock(most, lambda: self.now_s)

    def begin(self, at_s: float) -> None:
        self.now_s = at_s
        self.clock.begin()

    def end(self, at_s: float, stored: int = 10) -> SentBytes | None:
        self.now_s = at_s
        return self.clock.end(stored)


def test_the_time_without_uploads_does_not_count() -> None:
    uploads = Uploads(2)
    uploads.begin(5.0)
    assert uploads.end(6.0) == SentBytes(10, 1.0, is_bound=False)
    uploads.begin(20.0)
    uploads.begin(21.0)
    assert uploads.end(22.0) is None  # the other one goes on
    assert uploads.end(22.5) == SentBytes(20, 2.5, is_bound=False)


def test_a_save_that_waits_for_the_store_is_measured_all_along() -> None:
    uploads = Uploads(2)
    uploads.begin(0.0)
    uploads.begin(0.0)
    found = []
    for at_s in range(1, 9):
        found.append(uploads.end(float(at_s)))
        uploads.begin(float(at_s))
    sent = SentBytes(40, 4.0, is_bound=True)
    assert found == [None, None, None, sent, None, None, None, sent]


def test_a_save_measures_its_store() -> None:
    store = Store.at(ModelStorage(World(), Scheduler()), create=True)
    save = SaveId("r", 1, "0a0b0c0d")
    rng = np.random.default_rng(0)
    data = rng.standard_normal(3 * MIB).astype(np.float32)
    budget = EncodeBudget(data.nbytes, only_if_slower=True)
    piece = TensorPiece("model/w", "float32", data.shape, (0,), data)
    write(store, save, [piece], {}, RunChunkIndex(store, "r").index(), WriteOptions(), budget)
    assert budget.outlook().store_rate is not None
