"""How fast a storage takes uploads, of which some run at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

from checkpointing.codec import Codec, EncodeBudget
from checkpointing.format.object_keys import SaveId
from checkpointing.storage import Buffer
from checkpointing.store.store import Store
from checkpointing.store.write import packer
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write
from checkpointing.store.write.upload_clock import SentBytes, UploadClock
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Scheduler

MIB = 1 << 20


class Uploads:
    """Uploads, and waits for them, at times that the test gives."""

    def __init__(self, most: int) -> None:
        self.now_s = 0.0
        self.clock = UploadClock(most, lambda: self.now_s)
        self._wait = ExitStack()

    def begin(self, at_s: float) -> None:
        self.now_s = at_s
        self.clock.begin()

    def end(self, at_s: float, stored: int = 10) -> SentBytes | None:
        self.now_s = at_s
        return self.clock.end(stored)

    def wait(self, from_s: float) -> None:
        self.now_s = from_s
        self._wait.enter_context(self.clock.waiting())

    def go_on(self, at_s: float) -> None:
        self.now_s = at_s
        self._wait.close()


def test_the_time_without_uploads_does_not_count() -> None:
    uploads = Uploads(2)
    uploads.begin(5.0)
    assert uploads.end(6.0) == SentBytes(10, 1.0, is_bound=False)
    uploads.wait(7.0)
    uploads.go_on(19.0)
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
        uploads.wait(at_s - 0.75)
        found.append(uploads.end(float(at_s)))
        uploads.go_on(float(at_s))
        uploads.begin(float(at_s))
    sent = SentBytes(40, 4.0, is_bound=True)
    assert found == [None, None, None, sent, None, None, None, sent]


def test_uploads_that_end_together_or_in_another_order_are_waited_for() -> None:
    uploads = Uploads(2)
    uploads.begin(0.0)
    uploads.begin(0.0)
    uploads.wait(0.0)  # for the first, and the second is there sooner
    assert uploads.end(3.0) is None
    assert uploads.end(4.0) == SentBytes(20, 4.0, is_bound=True)


@pytest.mark.parametrize(("from_s", "is_bound"), [(2.0, True), (2.1, False)])
def test_a_save_of_fewer_packs_than_uploads_waits_at_its_end(from_s: float, is_bound: bool) -> None:
    uploads = Uploads(3)
    uploads.begin(0.0)
    uploads.wait(from_s)
    assert uploads.end(4.0) == SentBytes(10, 4.0, is_bound)


class WaitedStorage(ModelStorage):
    """A storage whose uploads take so many seconds from when the save waits for them."""

    def __init__(self, is_waiting: threading.Event, now_s: list[float], *seconds: float) -> None:
        super().__init__(World(), Scheduler())
        self._is_waiting, self._now_s, self._seconds = is_waiting, now_s, iter(seconds)

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        assert self._is_waiting.wait(60)
        self._is_waiting.clear()
        self._now_s[0] += next(self._seconds)
        super().put(key, parts)


def test_the_last_pack_of_a_save_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    is_waiting, now_s = threading.Event(), [0.0]

    class Clock(UploadClock):
        def __init__(self, most: int) -> None:
            super().__init__(most, lambda: now_s[0])

        @contextmanager
        def waiting(self) -> Iterator[None]:
            with super().waiting():
                is_waiting.set()
                yield

    monkeypatch.setattr(packer, "UploadClock", Clock)
    storage = WaitedStorage(is_waiting, now_s, 1.0, 2.0)
    budget, content = EncodeBudget(0), bytes(9 * MIB)
    for rate in (9 * MIB, 9 * MIB / 1.1):  # a slower one counts, too
        with packer.ChunkPacker(storage, "0a0b0c0d", budget=budget) as packs:
            packs.add(bytes(32), content, len(content), Codec.RAW, None)
            packs.finish()
        assert budget.outlook().store_rate == pytest.approx(rate, rel=0.001)


def test_a_save_measures_its_store() -> None:
    store = Store.at(ModelStorage(World(), Scheduler()), create=True)
    save = SaveId("r", 1, "0a0b0c0d")
    rng = np.random.default_rng(0)
    data = rng.standard_normal(3 * MIB).astype(np.float32)
    budget = EncodeBudget(data.nbytes, only_if_slower=True)
    piece = TensorPiece("model/w", "float32", data.shape, (0,), data)
    write(store, save, [piece], {}, RunChunkIndex(store, "r").index(), WriteOptions(), budget)
    assert budget.outlook().store_rate is not None
