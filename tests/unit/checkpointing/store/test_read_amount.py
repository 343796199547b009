"""How often and how much is read of packs: by verify, by saves on bases, and for a listing."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from checkpointing.errors import DamagedError
from checkpointing.format.object_keys import pack_key
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store import catalog
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.inspection.integrity_check import (
    TOGETHER,
    Level,
    together,
    verify,
    verify_all,
)
from checkpointing.store.store import Store
from tests.unit.checkpointing.store import delta_stores
from tests.unit.checkpointing.store.delta_stores import DELTAS, PLAIN, tensor
from tests.unit.checkpointing.store.recording_storage import Recording

RUN = "run"
NAMES = [f"model/layers.{i}.w" for i in range(40)]


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Recording:
    return Recording(MemoryStorage(f"memory://{request.node.nodeid}"))


@pytest.fixture
def store(storage: Recording) -> Store:
    return Store.at(storage, create=True)


def _tensors(step: int) -> dict[str, NDArray[np.float32]]:
    """All change a little with every step but the last one, which never does."""
    made = {name: tensor(i) + np.float32(1e-4 * step) for i, name in enumerate(NAMES)}
    return {**made, "model/frozen": tensor(99)}


def _save(store: Store, steps: int) -> list[CatalogEntry]:
    for step in range(1, steps + 1):
        delta_stores.save(store, RUN, step, _tensors(step), DELTAS)
    return sorted(catalog.committed(store)[0], key=lambda found: found.stored.save)


def _bytes(store: Store) -> int:
    return sum(entry.size for entry in store.storage.list("packs/"))


def _flip(storage: Recording, found: CatalogEntry, name: str) -> str:
    """Damage the chunk of a tensor; the key of its pack."""
    (chunk,) = found.document.table("model").chunks[name].values()
    key = pack_key(chunk.pack)
    data = bytearray(storage.get(key))
    data[chunk.offset + 20] ^= 1
    storage.replace(key, bytes(data))
    return key


@pytest.mark.parametrize("level", ["crc", "full"])
def test_what_checkpoints_share_is_read_once(
    storage: Recording, store: Store, level: Level
) -> None:
    found = _save(store, 4)
    storage.of_packs()
    assert verify_all(store, found, level) == [[]] * 4
    assert sum(length for _, _, length in storage.of_packs()) <= _bytes(store)
    for one in found:
        assert verify(store, one, level) == []
    assert sum(length for _, _, length in storage.of_packs()) > 2 * _bytes(store)


@pytest.mark.parametrize("level", ["quick", "crc", "full"])
def test_together_the_same_is_found_as_one_by_one(
    storage: Recording, store: Store, level: Level
) -> None:
    found = _save(store, 3)
    _flip(storage, found[0], NAMES[3])  # a base of all
    _flip(storage, found[1], NAMES[7])  # of two
    key = _flip(storage, found[2], NAMES[9])
    storage.delete([key])
    _flip(storage, found[0], "model/frozen")
    alone = [verify(store, one, level) for one in found]
    assert [set(problems) for problems in verify_all(store, found, level)] == [
        set(problems) for problems in alone
    ]
    steps = [{problem.step for problem in problems} for problems in alone]
    assert steps == ([set(), set(), {3}] if level == "quick" else [{1}, {2}, {3}])


def test_as_many_together_as_there_is_memory_for(store: Store) -> None:
    (one,) = _save(store, 1)
    groups = list(together([one] * (2 * TOGETHER + 1)))
    assert [len(group) for group in groups] == [TOGETHER, TOGETHER, 1]
    summary = replace(one.document.items["model"], chunks=1 << 20)
    one.document.items = {"model": summary}
    assert [len(group) for group in together([one] * 3)] == [1, 1, 1]


def test_bases_are_read_many_at_a_time(storage: Recording, store: Store) -> None:
    delta_stores.save(store, RUN, 1, _tensors(1), DELTAS)
    storage.of_packs()
    save = delta_stores.save(store, RUN, 2, _tensors(2), DELTAS)
    reads = storage.of_packs()
    assert 1 <= len(reads) <= 3  # 40 bases that lie one after the other
    table = delta_stores.find(store, save).document.table("model")
    bases = [c.base for name in NAMES for c in table.chunks[name].values()]
    assert all(base is not None for base in bases)
    assert verify(store, delta_stores.find(store, save)) == []


def test_nothing_is_read_for_what_did_not_change(storage: Recording, store: Store) -> None:
    tensors = _tensors(1)
    delta_stores.save(store, RUN, 1, tensors, DELTAS)
    storage.of_packs()
    delta_stores.save(
        store, RUN, 2, {**tensors, NAMES[0]: tensor(50), NAMES[30]: tensor(51)}, DELTAS
    )
    reads = storage.of_packs()
    assert sum(length for _, _, length in reads) == 2 * tensors[NAMES[0]].nbytes


def test_a_damaged_base_is_named(storage: Recording, store: Store) -> None:
    (first,) = _save(store, 1)
    _flip(storage, first, NAMES[5])
    with pytest.raises(DamagedError, match=r"do not match their hash"):
        delta_stores.save(store, RUN, 2, _tensors(2), DELTAS)


def test_headers_are_read_side_by_side_once_one_is_slow_and_listed_in_order(
    storage: Recording, store: Store
) -> None:
    steps, reads = 8, itertools.count()
    for step in range(steps):
        delta_stores.save(store, RUN, step, {"model/w": tensor(step)}, PLAIN)
    wanted = [found.stored for found in catalog.committed(store, RUN)[0]]
    others = threading.Barrier(steps - 1, timeout=300)

    def before(key: str) -> None:
        if not key.endswith(".manifest"):
            return
        if next(reads) == 0:
            time.sleep(2 * catalog._SLOW_S)
        else:
            others.wait()  # breaks, and fails the read, unless all come

    storage.before = before
    found, problems = catalog.committed(Store.at(storage), RUN)
    assert [one.stored for one in found] == wanted
    assert [one.stored.save.step for one in found] == list(range(steps))[::-1]
    assert problems == {}
