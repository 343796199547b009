"""A session that another process of the same job goes on with, after the first one was killed."""

from __future__ import annotations

import pytest

from checkpointing.errors import SaveError
from checkpointing.format import object_keys
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.format.store_records import dump_lease
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.store.deletion import deletion_marks
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.sessions import run_ownership, session_leases
from checkpointing.store.sessions.session import Session
from checkpointing.store.sessions.session_leases import SessionLease
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, having_parts, write_part
from checkpointing.store.write.part_writer import write
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.schedules.scripted_schedules import V, W, script

RUN, ID = "a", "0a0b0c0d"


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    return Store.at(MemoryStorage(f"memory://{request.node.name}"), create=True)


def _killed(session: Session) -> None:
    """Its process is gone: nothing is given back, and nothing is renewed."""
    session._stop.set()


def _write(session: Session, save: SaveId, rank: int, ranks: int = 2) -> None:
    mine = saves.pieces(V, rank, ranks)
    index = RunChunkIndex(session.store, RUN).index()
    made = write(session.store, save, mine, {}, index, saves.PLAIN)
    write_part(session.store, ManifestHeader(save, 1.0, ranks), rank, made)


def _held(store: Store) -> SessionLease:
    (held,) = session_leases.leases(store, session_leases.storage_time(store))
    return held


def _lease_keys(store: Store) -> list[str]:
    return [entry.key for entry in store.storage.list(object_keys.LEASES)]


def test_the_second_process_goes_on_where_the_first_was(store: Store) -> None:
    first = Session(store, RUN, session=ID)
    save = first.begin(1)
    assert not having_parts(store, save, [0])
    _write(first, save, 0)
    _killed(first)
    with Session(store, RUN, session=ID) as second:
        assert second.begin(1) == save
        assert having_parts(store, save, [0])
        assert not having_parts(store, save, [1])
        _write(second, save, 1)
        commit(store, save, 2, check=second.check)
        assert having_parts(store, save, [0]), "it is committed"
        second.end(save.manifest())
    assert _lease_keys(store) == []
    assert saves.problems(store) == []
    for _ in range(2):
        sweep(store, grace_s=0)
    left = {entry.key.partition("/")[0] for entry in store.storage.list("")}
    assert left == {object_keys.STORE, "packs", "runs"}


def test_it_holds_what_was_announced_from_the_first_moment(store: Store) -> None:
    first = Session(store, RUN, session=ID)
    save = first.begin(1)
    _killed(first)
    (before,) = _lease_keys(store)
    with Session(store, RUN, session=ID):
        (after,) = _lease_keys(store)
        assert after > before
        lease = _held(store).lease
        assert lease is not None
        assert list(lease.saving) == [save.manifest()]


def test_a_lease_that_the_first_had_under_way_takes_the_place_of_none(store: Store) -> None:
    first = Session(store, RUN, session=ID)
    first.begin(1)
    lease = _held(store).lease
    assert lease is not None
    _killed(first)
    with Session(store, RUN, session=ID) as second:
        save = second.begin(2)
        for late in range(1, 20):
            key = object_keys.lease(ID, lease.renewals + late)
            store.storage.put(key, [dump_lease(lease)])
        now = _held(store).lease
        assert now is not None
        assert save.manifest() in now.saving


def test_it_counts_only_on_what_the_first_had_seen(store: Store) -> None:
    seen = deletion_marks.write(store, packs=["packs/00/x"])
    first = Session(store, RUN, session=ID)
    save = first.begin(1)
    _killed(first)
    deletion_marks.write(store, packs=["packs/00/y"])
    with Session(store, RUN, session=ID) as second:
        second.begin(1)
        lease = _held(store).lease
        assert lease is not None
        assert lease.saving == {save.manifest(): (seen,)}


def test_what_the_first_referred_to_stays_until_the_second_has_committed() -> None:
    # the first refers to the pack of b/1, which is condemned before the second comes
    with script() as play:
        play.finish(play.saver("b", 1, V))
        store = play.model.store()
        first = Session(store, RUN, session=ID)
        save = first.begin(1)
        play.model.facts.begun[save] = V
        _write(first, save, 0, ranks=1)
        _killed(first)
        play.finish(play.saver("b", 2, W), play.pruner("b"))
        with Session(store, RUN, session=ID) as second:
            second.begin(1)
            play.finish(play.sweeper(), play.sweeper())
            commit(store, save, 1, check=second.check)
            second.end(save.manifest())
        assert play.ids(RUN) == {save.id}


def test_a_save_that_the_first_had_committed_is_a_success(store: Store) -> None:
    first = Session(store, RUN, session=ID)
    save = first.begin(1)
    for rank in range(2):
        _write(first, save, rank)
    content = commit(store, save, 2, check=first.check)
    _killed(first)
    with Session(store, RUN, session=ID) as second:
        second.begin(1)
        assert having_parts(store, save, range(2)) == {0, 1}
        assert commit(store, save, 2, check=second.check) == content
        second.end(save.manifest())
    assert _lease_keys(store) == []


def test_what_is_not_begun_again_is_given_up_with_the_first_end(store: Store) -> None:
    first = Session(store, RUN, session=ID)
    first.begin(1)
    first.begin(2)
    _killed(first)
    with Session(store, RUN, session=ID) as second:
        save = second.begin(3)
        lease = _held(store).lease
        assert lease is not None
        assert len(lease.saving) == 3
        second.end(save.manifest())
        assert _lease_keys(store) == []


def test_parts_that_nobody_had_announced_for_a_while_are_not_gone_on_with(store: Store) -> None:
    first = Session(store, RUN, session=ID)
    save = first.begin(1)
    _write(first, save, 0)
    first.close()  # from now on prune may remove what they refer to
    with Session(store, RUN, session=ID) as second:
        with pytest.raises(SaveError, match="was given up by the process that began it"):
            second.begin(1)
        assert _lease_keys(store) == []
        second.begin(2)


def test_a_session_that_was_declared_dead_is_not_continued(store: Store) -> None:
    first = Session(store, RUN, session=ID)
    save = first.begin(1)
    _killed(first)
    assert session_leases.fence(store, ID) == [save.manifest()]
    with pytest.raises(SaveError, match="declared dead"):
        Session(store, RUN, session=ID)
    assert _lease_keys(store) == [object_keys.fence(ID)]


def test_one_that_dies_while_it_is_continued_is_refused_and_leaves_no_lease() -> None:
    with script() as play:
        store = play.model.store()
        first = Session(store, RUN, session=ID)
        save = first.begin(1)
        play.model.facts.begun[save] = V
        _killed(first)
        second = play.actor(lambda store: Session(store, RUN, session=ID))
        play.up_to(second, "put leases/")
        session_leases.fence(store, ID)
        play.finish(second)
        assert isinstance(second.error, SaveError)
        second.error = None
        assert [key for key in play.model.world.objects if key.endswith(".lease")] == []


def test_a_lease_that_says_nothing_is_not_continued(store: Store) -> None:
    store.storage.put(object_keys.lease(ID, 1), [b"{"])
    with pytest.raises(SaveError, match="cannot be read: begin a new session"):
        Session(store, RUN, session=ID)


def test_a_session_of_another_run_is_not_continued(store: Store) -> None:
    first = Session(store, "b", session=ID)
    first.begin(1)
    _killed(first)
    with pytest.raises(SaveError, match="its lease belongs to run 'b'"):
        Session(store, RUN, session=ID)
    first.close()


def test_the_second_process_of_who_was_taken_over_meanwhile_saves_nothing(store: Store) -> None:
    number = run_ownership.claim(store, RUN)
    first = Session(store, RUN, session=ID, owner=number)
    first.close()  # it was idle
    run_ownership.claim(store, RUN)
    with Session(store, RUN, session=ID, owner=number) as second:
        with pytest.raises(SaveError, match="took over the run"):
            second.begin(1)
        assert _lease_keys(store) == []


def test_what_is_no_session_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="eight hex digits, got 'mine'"):
        Session(store, RUN, session="mine")
