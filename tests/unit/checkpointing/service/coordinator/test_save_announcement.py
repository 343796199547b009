"""How nodes agree through the store alone."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from checkpointing.format import object_keys
from checkpointing.format.manifest import ManifestContent, ManifestHeader, build_manifest
from checkpointing.format.object_keys import SaveId
from checkpointing.service.coordinator import save_leader
from checkpointing.service.coordinator.save_announcement import (
    AnnouncedSave,
    SaveFate,
    announced,
    fate_of_save,
    is_announced,
    last_epoch,
    newest_committed,
)
from checkpointing.service.coordinator.save_leader import SaveLeader
from checkpointing.service.save_errors import LeaderMovedError, RunTakenOverError
from checkpointing.service.session_names import AHEAD, session_id
from checkpointing.service.snapshots import Generation
from checkpointing.store.sessions import run_ownership
from checkpointing.store.sessions.session_leases import abandon, fence
from checkpointing.store.store import Store

MINE, OTHER = Generation("aaaaaaaa", 1), Generation("bbbbbbbb", 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def commit(store: Store, save: SaveId) -> None:
    manifest = build_manifest(ManifestContent(ManifestHeader(save, 0.0, 1, {}), {}, {}))
    assert store.storage.create(save.manifest(), manifest)


def test_sessions_differ_by_epoch_and_generation() -> None:
    made = [session_id(g, e) for g, e in itertools.product((MINE, OTHER), range(100))]
    assert len(set(made)) == 200
    assert all(map(object_keys.is_session, made))
    assert session_id(MINE, 0) == MINE.id


def test_a_save_from_its_announcement_to_its_commit(store: Store) -> None:
    assert announced(store, "r", MINE) is None
    leader = SaveLeader(store, "r", MINE)
    save = leader.begin(5)
    assert announced(store, "r", MINE) == AnnouncedSave(0, save)
    assert announced(store, "r", OTHER) is None
    assert announced(store, "other", MINE) is None
    assert is_announced(store, save)
    assert fate_of_save(store, save) is None
    assert newest_committed(store, "r", MINE) is None
    commit(store, save)
    leader.end(save)
    assert announced(store, "r", MINE) is None
    assert not is_announced(store, save)
    assert fate_of_save(store, save) is SaveFate.COMMITTED
    assert newest_committed(store, "r", MINE) == AnnouncedSave(0, save)
    assert newest_committed(store, "r", OTHER) is None


def test_a_save_that_is_given_up(store: Store) -> None:
    leader = SaveLeader(store, "r", MINE)
    save = leader.begin(5)
    leader.give_up(save)
    assert fate_of_save(store, save) is SaveFate.ABANDONED
    assert not is_announced(store, save)
    again = leader.begin(5)  # under another name; the odd ones are an heir's
    assert again.session == session_id(MINE, 2)
    assert announced(store, "r", MINE) == AnnouncedSave(2, again)
    assert last_epoch(store, "r", MINE) == 2
    leader.close()


def test_the_newest_of_several_is_the_one(store: Store) -> None:
    leader = SaveLeader(store, "r", MINE)
    leader.begin(5)
    newer = leader.begin(6)
    assert announced(store, "r", MINE) == AnnouncedSave(0, newer)
    leader.close()


def test_what_is_fenced_is_announced_no_longer(store: Store) -> None:
    leader = SaveLeader(store, "r", MINE)
    save = leader.begin(5)
    fence(store, save.session)
    assert announced(store, "r", MINE) is None
    assert fate_of_save(store, save) is SaveFate.ABANDONED
    again = leader.begin(6)
    assert announced(store, "r", MINE) == AnnouncedSave(2, again)
    leader.close()


def test_a_leader_that_is_started_again_goes_on_where_the_last_one_was(store: Store) -> None:
    """Other nodes look for nothing older."""
    first = SaveLeader(store, "r", MINE)
    for _ in range(3):
        first.give_up(first.begin(5))
    save = first.begin(5)
    assert save.session == session_id(MINE, 6)
    second = SaveLeader(store, "r", MINE)  # the first one was killed: its lease is there
    assert second.begin(5) == save
    assert announced(store, "r", MINE, 6) == AnnouncedSave(6, save)
    second.close()


def test_what_an_heir_has_ended_is_not_waited_for(store: Store) -> None:
    """It led while this node was away: nobody has parts for a second save of the step."""
    heir = SaveLeader(store, "r", MINE, replaces_leader=True)
    ended = heir.begin(5)
    back = SaveLeader(store, "r", MINE)
    save = back.begin(5)
    assert ended.session == session_id(MINE, 1)
    assert save.session == session_id(MINE, 2)
    commit(store, ended)
    heir.end(ended)
    with pytest.raises(LeaderMovedError, match=f"{save.id} is not needed: {ended.id}"):
        back.commit(save, alone=False, given_up=lambda: False)
    assert not is_announced(store, save)
    assert newest_committed(store, "r", MINE) == AnnouncedSave(1, ended)
    heir.close()
    back.close()


def test_what_a_killed_leader_has_announced_stays_when_its_earlier_save_is_ended(
    store: Store,
) -> None:
    """It was killed between the commit of a save and its end, with the next save announced."""
    first = SaveLeader(store, "r", MINE)
    ended, under_way = first.begin(5), first.begin(6)
    commit(store, ended)
    second = SaveLeader(store, "r", MINE)  # the first one was killed: its lease is there
    second.end_former(ended)
    assert is_announced(store, under_way)
    assert not is_announced(store, ended)
    assert second.begin(6) == under_way
    second.close()


def test_an_heir_does_not_wait_for_the_node_that_leads_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had begun the step before one knew of the other: each waited for the other's parts."""
    monkeypatch.setattr(save_leader, "_MAX_POLL_S", 0.02)
    heir = SaveLeader(store, "r", MINE, replaces_leader=True)
    begun = heir.begin(5)
    back = SaveLeader(store, "r", MINE)
    save = back.begin(5)
    with pytest.raises(LeaderMovedError, match=f"{begun.id} continues as {save.id}"):
        heir.commit(begun, alone=False, given_up=lambda: False)
    assert announced(store, "r", MINE) == AnnouncedSave(2, save)
    heir.close()
    back.close()


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_leader_whose_heir_continues_its_save_has_not_lost_it(
    store: Store, is_committed: bool
) -> None:
    """It was taken for lost, and is alive: the heir has declared its session dead."""
    leader = SaveLeader(store, "r", MINE)
    save = leader.begin(5)
    heir = SaveLeader(store, "r", MINE, replaces_leader=True)
    continued = heir.begin(5)
    assert fate_of_save(store, save) is SaveFate.ABANDONED
    if is_committed:
        commit(store, continued)
        heir.end(continued)
    with pytest.raises(LeaderMovedError, match=continued.id):
        leader.commit(save, alone=False, given_up=lambda: False)
    heir.close()
    leader.close()


def test_the_last_epoch_is_found_beyond_the_window(store: Store) -> None:
    for epoch in range(0, 3 * AHEAD, AHEAD - 1):
        abandon(store, SaveId("r", 1, session_id(MINE, epoch)).manifest())
        assert last_epoch(store, "r", MINE) == epoch


def test_damaged_leases_are_passed_over(store: Store) -> None:
    leader = SaveLeader(store, "r", MINE)
    save = leader.begin(5)
    store.storage.put(object_keys.lease(session_id(MINE, 1), 1), [b"damaged"])
    assert announced(store, "r", MINE) == AnnouncedSave(0, save)
    leader.close()


def test_a_pruned_checkpoint_was_committed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    save = SaveId("r", 5, MINE.id)
    commit(store, save)
    listed = store.manifests("r")
    store.storage.delete([save.manifest()])
    monkeypatch.setattr(store, "manifests", lambda run: listed)
    assert fate_of_save(store, save) is SaveFate.COMMITTED


class TestTakingOver:
    def test_a_generation_that_was_overtaken_announces_nothing_more(self, store: Store) -> None:
        leader = SaveLeader(store, "r", Generation("aaaaaaaa", 1, run_ownership.claim(store, "r")))
        leader.begin(1)
        run_ownership.claim(store, "r")
        with pytest.raises(RunTakenOverError, match="took over"):
            leader.begin(2)
        assert announced(store, "r", MINE) is None or is_announced(store, SaveId("r", 1, MINE.id))

    def test_the_next_generation_in_the_same_process_goes_by_its_own_take_over(
        self, store: Store
    ) -> None:
        for id_ in ("aaaaaaaa", "bbbbbbbb"):
            leader = SaveLeader(store, "r", Generation(id_, 1, run_ownership.claim(store, "r")))
            leader.end(leader.begin(1))
            leader.close()

    def test_a_dead_session_is_no_way_around_it(self, store: Store) -> None:
        leader = SaveLeader(store, "r", Generation("aaaaaaaa", 1, run_ownership.claim(store, "r")))
        save = leader.begin(1)
        run_ownership.claim(store, "r")
        fence(store, save.session)
        with pytest.raises(RunTakenOverError):
            leader.begin(1)


def test_parts_of_a_save_that_nobody_announced_for_a_while_are_not_gone_on_with(
    store: Store,
) -> None:
    save = SaveId("r", 5, MINE.id)
    store.storage.create(save.part(0), b"a part")
    leader = SaveLeader(store, "r", MINE)
    assert leader.begin(5).session == session_id(MINE, 2)
    leader.close()
