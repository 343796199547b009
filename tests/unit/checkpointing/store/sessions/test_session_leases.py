"""Sessions and their leases: what prune sees of who is alive, whatever happens beside its look."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from checkpointing.errors import SaveError, StoreError
from checkpointing.format import object_keys
from checkpointing.format.store_records import Lease, dump_lease, load_lease
from checkpointing.storage import ObjectInfo
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.sessions import session as session_module
from checkpointing.store.sessions import session_leases
from checkpointing.store.sessions.session import Session
from checkpointing.store.sessions.session_leases import SessionLease
from checkpointing.store.store import Store
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Scheduler

RUN = "a"
V = {"model/w": 1}


class Interrupted(ModelStorage):
    """A storage beside which something happens once, in the middle of a listing of leases."""

    def __init__(self, hides: str | None = None) -> None:
        super().__init__(World(), Scheduler())
        self.meanwhile: Callable[[], None] | None = None
        self._hides = hides
        self.fails = False

    def list(self, prefix: str) -> list[ObjectInfo]:
        if prefix != object_keys.LEASES or self.meanwhile is None:
            return super().list(prefix)
        before = super().list(prefix)
        meanwhile, self.meanwhile = self.meanwhile, None
        meanwhile()
        # "new": an object made meanwhile is not shown; "both": one that went is not, either
        there = {entry.key for entry in super().list(prefix)}
        return [e for e in before if self._hides == "new" or e.key in there]

    def delete(self, keys: object) -> None:
        if self.fails:
            raise StoreError("out of reach")
        super().delete(keys)  # type: ignore[arg-type]


def _alive(store: Store) -> list[SessionLease]:
    return session_leases.leases(store, session_leases.storage_time(store))


@pytest.fixture
def store() -> Store:
    return Store.at(Interrupted(), create=True)


def test_a_session_holds_one_lease_while_it_has_something_to_protect(store: Store) -> None:
    with Session(store, RUN) as session:
        assert _alive(store) == []
        save = session.begin(1)
        session.renew()
        session.renew()
        (held,) = _alive(store)
        assert held.lease is not None
        assert held.session == session.id
        assert list(held.lease.saving) == [save.manifest()]
        assert len(store.storage.list(object_keys.LEASES)) == 1
        session.end(save.manifest())
        assert store.storage.list(object_keys.LEASES) == []


def test_an_announcement_names_the_tombs_that_were_there_before(store: Store) -> None:
    before = deletion_marks.write(store, packs=["packs/00/x"])
    with Session(store, RUN) as session:
        save = session.begin(1)
        after = deletion_marks.write(store, packs=["packs/00/y"])
        held = _alive(store)
        assert held[0].lease is not None
        assert held[0].lease.saving == {save.manifest(): (before,)}
        assert session_leases.blocks(held, before, set()) is None
        assert "is saving" in str(session_leases.blocks(held, after, set()))


@pytest.mark.parametrize("hides", ["new", "both"])
def test_a_renewal_beside_the_look_hides_no_session(hides: str) -> None:
    storage = Interrupted(hides)
    store = Store.at(storage, create=True)
    with Session(store, RUN) as session:
        save = session.begin(1)
        now = session_leases.storage_time(store)
        storage.meanwhile = session.renew
        (held,) = session_leases.leases(store, now)
        assert held.lease is not None
        assert save.manifest() in held.lease.saving


def test_renewals_sort_as_numbers() -> None:
    keys = [object_keys.lease("0a0b0c0d", n) for n in (1, 9, 10, 99, 100)]
    assert keys == sorted(keys)
    assert {object_keys.parse_lease(key) for key in keys} == {("0a0b0c0d", "lease")}


def test_two_leases_of_a_session_protect_what_either_does(store: Store) -> None:
    base = Lease("0a0b0c0d", RUN, "somebody", 600.0)
    for number, saving, reading in (
        (1, {"k": ("t1", "t2")}, ("r1",)),
        (2, {"k": ("t2",)}, ("r2",)),
    ):
        lease = Lease(base.session, RUN, base.owner, base.ttl_s, number, saving, reading)
        store.storage.put(object_keys.lease(base.session, number), [dump_lease(lease)])
    (held,) = _alive(store)
    assert held.lease is not None
    assert held.lease.saving == {"k": ("t2",)}
    assert set(held.lease.reading) == {"r1", "r2"}
    store.storage.put(object_keys.lease(base.session, 3), [b"damaged"])
    assert _alive(store)[0].lease is None


def test_a_dead_session_can_neither_begin_nor_commit(store: Store) -> None:
    with Session(store, RUN) as session:
        save = session.begin(1)
        assert session_leases.fence(store, session.id) == [save.manifest()]
        with pytest.raises(SaveError, match="declared dead"):
            session.check()
        with pytest.raises(SaveError, match="declared dead"):
            session.begin(2)
        assert store.document(store.manifests(RUN)[0]).kind == "hpckit-abandoned"
    assert [entry.key for entry in store.storage.list(object_keys.LEASES)] == [
        object_keys.fence(session.id)
    ]


def test_the_fence_does_not_abandon_what_was_committed(store: Store) -> None:
    saves.save_all(store, RUN, {1: V})
    (stored,) = store.manifests(RUN)
    with Session(store, "b") as session:
        session.announce(stored.key)
        assert session_leases.fence(store, session.id) == []
    assert saves.problems(store) == []


def test_the_fence_is_written_before_the_announcements_are_read(store: Store) -> None:
    storage = store.storage
    assert isinstance(storage, Interrupted)
    refused: list[str] = []

    def announce() -> None:
        with pytest.raises(SaveError, match="declared dead") as raised:
            session.begin(1)
        refused.append(str(raised.value))

    with Session(store, RUN) as session:
        storage.meanwhile = announce
        session_leases.fence(store, session.id)
    assert refused, "who announces while its leases are listed sees the fence"


def test_the_leases_stay_until_all_that_they_announce_is_abandoned(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(store, RUN) as session:
        save = session.begin(1)
        with monkeypatch.context() as patched:
            patched.setattr(session_leases, "abandon", _unreachable)
            with pytest.raises(StoreError):
                session_leases.fence(store, session.id)
        assert session_leases.is_fenced(store, session.id)
        (held,) = _alive(store)
        assert held.lease is not None
        assert list(held.lease.saving) == [save.manifest()], "the next takeover finds it"
        assert session_leases.fence(store, session.id) == [save.manifest()]
        assert _alive(store) == []


def _unreachable(store: Store, key: str) -> bool:
    raise StoreError("out of reach")


def test_who_could_not_renew_commits_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Session(store, RUN, ttl_s=600.0) as session:
        with pytest.raises(SaveError, match=r"call announce\(\) first"):
            session.check()
        session.begin(1)
        now[0] += 599
        session.check()
        now[0] += 2
        with pytest.raises(SaveError, match="could not renew its lease for 601 s"):
            session.check()


def test_a_lease_that_could_not_be_given_back_goes_with_the_next_renewal(store: Store) -> None:
    assert isinstance(store.storage, Interrupted)
    with Session(store, RUN) as session:
        save = session.begin(1)
        store.storage.fails = True
        session.end(save.manifest())  # training does not stop for this
        assert len(store.storage.list(object_keys.LEASES)) == 1
        store.storage.fails = False
        session.renew()
        assert store.storage.list(object_keys.LEASES) == []


def test_reading_what_is_not_there_is_an_error_and_leaves_no_lease(store: Store) -> None:
    saves.save_all(store, RUN, {1: V})
    (stored,) = store.manifests(RUN)
    with Session(store, RUN) as session:
        with session.reading(stored.key):
            assert _alive(store)[0].lease is not None
        with pytest.raises(FileNotFoundError, match="was removed"), session.reading("runs/a/x"):
            pass
        deletion_marks.write(store, manifests=[stored.key])
        with pytest.raises(FileNotFoundError, match="removing"), session.reading(stored.key):
            pass
    assert store.storage.list(object_keys.LEASES) == []


def test_who_reads_something_that_is_gone_holds_up_every_burial() -> None:
    lease = Lease("0a0b0c0d", RUN, "somebody", 600.0, 1, {}, ("there", "gone"))
    held = [SessionLease(lease.session, lease, 0.0)]
    assert session_leases.blocks(held, "t", {"there", "gone"}) is None
    assert "reading gone" in str(session_leases.blocks(held, "t", {"there"}))
    assert "cannot be read" in str(
        session_leases.blocks([SessionLease(lease.session, None, 0.0)], "t", set())
    )


def test_the_age_of_a_lease_is_by_the_storages_clock(store: Store) -> None:
    assert isinstance(store.storage, Interrupted)
    with Session(store, RUN, ttl_s=100.0) as session:
        session.begin(1)
        store.storage.world.now += 99.0
        assert _alive(store)[0].is_alive
        store.storage.world.now += 2.0
        assert not _alive(store)[0].is_alive
    assert [e for e in store.storage.list(object_keys.LEASES) if "clock" in e.key] == []


def test_a_lease_survives_its_form() -> None:
    lease = Lease("0a0b0c0d", RUN, "host:1", 600.0, 7, {"m": ("t1", "t2")}, ("r",))
    assert load_lease(dump_lease(lease), "here") == lease
