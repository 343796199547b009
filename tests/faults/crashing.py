"""A save and a prune that die at a chosen change of the store, and what must hold afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn
from unittest import mock

from checkpointing.format import object_keys
from checkpointing.format.object_keys import SaveId
from checkpointing.retention import KeepPolicy, Last, Only
from checkpointing.storage import ObjectInfo, Storage, open_storage
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion import checkpoint_prune as prune_module
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.sessions.run_takeover import take_over
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from tests.forkserver import fork_server
from tests.services.crash_storage import CrashStorage
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.saves import Values

When = Literal["before", "after"]
RUN = "a"
# 1 has packs of its own, of those of 2 a part is shared with 3, and 4 shares with 3
STEPS: Mapping[int, Values] = {
    1: {"model/a": 1, "model/b": 2, "optim/a": 3},
    2: {"model/a": 4, "model/b": 10, "optim/a": 5},
    3: {"model/a": 4, "model/b": 6, "optim/a": 7},
}
NEW_STEP = 4
NEW: Values = {"model/a": 4, "model/b": 8, "optim/a": 9}
# of steps 4 and 3 all is kept, of 2 its model, of 1 nothing
POLICIES: list[KeepPolicy] = [Last(2), Only(("model",), Last(3))]
OTHER = "b"  # a run that has the same as step 3: nothing of it may go
_PARALLEL = 1  # several at once make the fork server lose exit codes now and then


@dataclass(frozen=True)
class Place:
    """Where a store is."""

    url: str
    options: Mapping[str, Any]

    def open(self) -> Storage:
        return open_storage(self.url, options=self.options)


def populate(storage: Storage) -> None:
    """The store before the process begins that is going to die."""
    store = Store.at(storage, create=True)
    saves.save_all(store, RUN, STEPS, ranks=2)
    saves.save_all(store, OTHER, {3: STEPS[3]})


def copied(source: Storage, target: Storage) -> None:
    """The same objects in another place."""

    def copy(entry: ObjectInfo) -> None:
        target.put(entry.key, [source.get(entry.key)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(copy, source.list("")))


def work(storage: Storage, ttl_s: float) -> None:
    """What the process does: one save by two ranks, and a prune with all that belongs to it."""
    with mock.patch.object(prune_module, "Session", partial(Session, ttl_s=ttl_s)):
        store = Store.at(storage)
        with Session(store, RUN, ttl_s=ttl_s) as session:
            saves.save(session, [RunChunkIndex(store, RUN) for _ in range(2)], NEW_STEP, NEW)
        prune(store, RUN, POLICIES, grace_s=0)


def changes(storage: Storage) -> list[str]:
    """All changes that `work` makes, in their order: "<operation> <key>"."""
    counting = CrashStorage(storage, -1, "before")
    work(counting, ttl_s=600.0)
    return counting.changes


def kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed, and still there")


def die_at(place: Place, kill_at: int, when: When, ttl_s: float) -> None:
    """To be run in a process of its own."""
    work(CrashStorage(place.open(), kill_at, when, kill), ttl_s)


def run_to_death(jobs: Iterable[Callable[[], None]]) -> list[int]:
    """Run each job in a process of its own; their exit codes."""
    context = fork_server()

    def run(job: Callable[[], None]) -> int:
        process = context.Process(target=job)
        process.start()
        process.join()
        return process.exitcode or 0

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(run, jobs))


def check_at_once(storage: Storage) -> None:
    """What must hold just after the death: nothing that is there is broken, nothing is missing."""
    store = Store.at(storage)
    wrong = saves.problems(store)
    assert not wrong, wrong
    _check_contents(store)
    assert {s.step for s in _saves(store, RUN)} >= {3}
    assert {s.step for s in _saves(store, OTHER)} == {3}


def check_after_all(storage: Storage) -> None:
    """What must hold when a successor has come and pruned, with all leases run out."""
    store = Store.at(storage)
    take_over(store, RUN)
    for _ in range(2):
        result = prune(store, RUN, POLICIES, grace_s=0)
        assert not result.spared, result.spared
    wrong = saves.problems(store)
    assert not wrong, wrong
    _check_contents(store)
    steps = {found.stored.save.step for found in catalog.committed(store, RUN)[0]}
    assert steps in ({3, 2, 1}, {4, 3, 2}), steps
    left = leaks(store)
    assert not left, left


def leaks(store: Store) -> list[str]:
    """Objects that nothing needs; owners, and fences and abandoned saves, which stay for a week,
    aside."""
    found = catalog.committed(store)[0]
    needed = {one.stored.key for one in found} | {object_keys.STORE}
    needed |= {object_keys.pack_key(pack) for one in found for pack in one.document.packs()}
    dead = {s.key for s in store.manifests() if store.document(s).kind == "hpckit-abandoned"}
    listed = {e.key for e in store.storage.list("")}
    left = {k for k in listed - needed - dead if "/owners/" not in k}
    return sorted(k for k in left if not k.startswith(object_keys.LEASES) or _held(k))


def _held(key: str) -> bool:
    return key.endswith(".lease")


def _saves(store: Store, run: str) -> list[SaveId]:
    return [found.stored.save for found in catalog.committed(store, run)[0]]


def _check_contents(store: Store) -> None:
    for found in catalog.committed(store)[0]:
        values = {**STEPS, NEW_STEP: NEW}[found.stored.save.step]
        checkpoint = Checkpoint(store, found.stored)
        kept = {
            k: v for k, v in saves.expected(values).items() if k.split("/")[0] in checkpoint.items
        }
        assert saves.contents(checkpoint) == kept, found.stored.key
        assert "model" in checkpoint.items


def age(storage: MemoryStorage, seconds: float) -> None:
    """Let all leases be so much older."""
    objects = storage._place.objects
    for key, (data, modified) in list(objects.items()):
        if key.endswith(".lease"):
            objects[key] = (data, modified - seconds)


@contextmanager
def opened(place: Place) -> Iterator[Storage]:
    storage = place.open()
    try:
        yield storage
    finally:
        storage.close()
