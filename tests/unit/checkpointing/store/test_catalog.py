"""One reading of the manifests is a listing and one that confirms it, whatever is revised
meanwhile."""

from __future__ import annotations

import secrets
import threading

import pytest

from checkpointing.format.object_keys import SaveId, steps
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store import catalog as catalogs
from checkpointing.store.catalog import list_checkpoints, read_catalog
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.recording_storage import ListCounter, Recording
from tests.unit.checkpointing.store.schedules.scripted_schedules import V

RUN = "a"


def store_of(*numbers: int) -> tuple[Store, ListCounter, list[SaveId]]:
    """A store with checkpoints of these steps."""
    storage = ListCounter(MemoryStorage(f"memory:{secrets.token_hex(4)}"))
    store = Store.at(storage, create=True)
    with Session(store, RUN) as session:
        made = [saves.save(session, [RunChunkIndex(store, RUN)], step, V) for step in numbers]
    storage.listed.clear()
    return store, storage, made


def test_a_reading_is_one_listing_and_its_confirmation() -> None:
    store, storage, (one, two) = store_of(1, 2)
    catalog = read_catalog(store, RUN)
    assert [entry.stored.save for entry in catalog.entries] == [two, one]
    assert not catalog.problems
    assert storage.listed == [steps(RUN)] * 2


def test_what_the_first_listing_missed_is_found_by_the_second() -> None:
    store, storage, (one, two) = store_of(1, 2)
    storage.missed = {two.manifest()}
    catalog = read_catalog(store, RUN)
    assert [entry.stored.save for entry in catalog.entries] == [two, one]


def test_a_known_catalog_is_confirmed_by_one_listing() -> None:
    store, storage, _ = store_of(1, 2)
    known = read_catalog(store, RUN)
    storage.listed.clear()
    assert read_catalog(store, RUN, known=known) is known
    assert storage.listed == [steps(RUN)]


def test_a_known_catalog_is_read_anew_if_anything_has_changed() -> None:
    store, _, (one, two) = store_of(1, 2)
    known = read_catalog(store, RUN)
    with Session(store, RUN) as session:
        three = saves.save(session, [RunChunkIndex(store, RUN)], 3, V)
    newer = read_catalog(store, RUN, known=known)
    assert [entry.stored.save for entry in newer.entries] == [three, two, one]
    store.storage.delete([three.manifest(), one.manifest()])
    older = read_catalog(store, RUN, known=newer)
    assert [entry.stored.save for entry in older.entries] == [two]


def test_damage_is_described_from_the_same_listing() -> None:
    store, storage, (one, two) = store_of(1, 2)
    store.forget(two.manifest())
    size = next(e.size for e in storage.list(steps(RUN)) if e.key == two.manifest())
    store.storage.delete([two.manifest()])
    store.storage.create(two.manifest(), bytes(size))
    storage.listed.clear()
    infos = list_checkpoints(store, RUN)
    assert [(info.id, info.state) for info in infos] == [(one.id, "committed"), (two.id, "damaged")]
    assert storage.listed.count(steps(RUN)) == 2


@pytest.mark.parametrize("slow_s", [-1.0, 1e9], ids=["slow", "quick"])
def test_headers_are_read_in_threads_where_the_storage_is_slow(
    slow_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, storage, made = store_of(1, 2, 3)
    monkeypatch.setattr(catalogs, "_SLOW_S", slow_s)
    readers: list[bool] = []
    recording = Recording(storage)
    recording.before = lambda key: readers.append(
        threading.current_thread() is threading.main_thread()
    )
    found = read_catalog(Store(recording, store.record), RUN)
    assert [entry.stored.save for entry in found.entries] == made[::-1]
    assert readers[0]
    assert all(readers) is (slow_s > 0)
