"""What of a node's own disk a run may go on from."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.session_names import session_id
from checkpointing.service.snapshots import Generation
from checkpointing.service.spool.spool_file import SpoolHeader
from checkpointing.service.spool.spool_folder import SpoolEntry, SpoolFolder
from checkpointing.service.spool.spool_recovery import (
    CommittedStep,
    RunHistory,
    SpoolCandidate,
    SpoolRecovery,
    newest_generation,
    why_stale,
)
from checkpointing.service.spool.spooler import Spooler, StoreOutlook
from checkpointing.store.sessions import run_ownership
from checkpointing.store.store import Store
from tests.unit.checkpointing.service.sample_trainers import SECOND, SLOT, Trainer, snapshot

MINE = Generation("aaaaaaaa", 2, 5)
UUID, NOW = "ab" * 16, 1e9
OTHERS = "cccccccc"


def spooled(
    step: int = 7, rank: int = 0, generation: Generation = MINE, slot: int = 0, since: int = -1
) -> SpoolHeader:
    one = replace(snapshot(rank, step, slot, generation), created=NOW)
    return SpoolHeader(one, generation.owner, UUID, since, 2, SLOT)


def past(*commits: CommittedStep, owner: int = 5, uuid: str = UUID) -> RunHistory:
    return RunHistory(uuid, owner, commits)


def theirs(step: int, after_s: float) -> CommittedStep:
    return CommittedStep(OTHERS, step, NOW + after_s)


def own(step: int, epoch: int = 0) -> CommittedStep:
    return CommittedStep(session_id(MINE, epoch), step, NOW)


def test_the_last_state_of_a_run_is_gone_on_from() -> None:
    assert why_stale(spooled(), past()) is None
    assert why_stale(spooled(since=6), past(own(6), theirs(5, -9), theirs(4, -99))) is None


@pytest.mark.parametrize("epoch", [0, 1, 17])
def test_what_is_durable_is_not(epoch: int) -> None:
    assert "step 7 of its generation" in str(why_stale(spooled(), past(own(7, epoch))))
    assert "step 9 of its generation" in str(why_stale(spooled(), past(own(9, epoch))))
    assert "step 7 is committed" in str(why_stale(spooled(), past(theirs(7, -1))))


def test_what_others_went_on_from_is_not_though_they_went_back() -> None:
    for step in (3, 6, 8, 1000):
        assert "saved later" in str(why_stale(spooled(), past(theirs(step, 1.0), owner=6)))


def test_a_take_over_alone_is_no_reason() -> None:
    assert why_stale(spooled(), past(theirs(6, -1), owner=9)) is None


def test_higher_steps_count_once_the_run_was_taken_over_whatever_the_clocks_say() -> None:
    assert why_stale(spooled(), past(theirs(8, -1))) is None  # it went back behind a damaged one
    assert "taken over since" in str(why_stale(spooled(), past(theirs(8, -1), owner=6)))
    unreadable = CommittedStep(OTHERS, 8, float("-inf"))
    assert "taken over since" in str(why_stale(spooled(), past(unreadable, owner=6)))


def test_another_run_of_the_same_name_is_another_run() -> None:
    assert "another store" in str(why_stale(spooled(), past(uuid="cd" * 16)))
    assert "4 takeovers" in str(why_stale(spooled(), past(owner=4)))
    assert "was reset" in str(why_stale(spooled(since=6), past(own(5))))
    assert "was reset" in str(why_stale(spooled(since=6), past()))


COMMITS = st.lists(
    st.builds(
        CommittedStep,
        st.sampled_from([OTHERS, *(session_id(MINE, epoch) for epoch in range(3))]),
        st.integers(0, 12),
        st.floats(NOW - 100, NOW + 100),
    )
)


@given(COMMITS, st.integers(5, 7))
def test_nothing_that_was_saved_later_by_others_is_ever_lost(
    commits: list[CommittedStep], owner: int
) -> None:
    if why_stale(spooled(), past(*commits, owner=owner)) is not None:
        return
    assert all(c.created <= NOW for c in commits if c.session == OTHERS)
    assert all(c.step < 7 for c in commits if c.session != OTHERS)
    assert all(c.step != 7 for c in commits)


def candidate(said: SpoolHeader) -> SpoolCandidate:
    one = said.snapshot
    return SpoolCandidate(
        SpoolEntry(Path(said.name), one.generation.id, one.rank, one.step, 0, 0), said
    )


def test_of_several_generations_the_last_owners_counts() -> None:
    later = replace(MINE, id="bbbbbbbb", owner=6)
    found = [candidate(spooled(step)) for step in (8, 9)]
    found += [candidate(spooled(step, generation=later)) for step in (2, 3)]
    assert [one.spooled.snapshot.step for one in newest_generation(found)] == [3, 2]
    assert newest_generation([]) == []


# --- with files and a store -----------------------------------------------------------------------


class Node:
    """A spool, a hall and a store."""

    def __init__(self, tmp: Path) -> None:
        self.store = Store.open(tmp / "store", create=True)
        self.registry, self.spool = (
            SnapshotRegistry(),
            SpoolFolder(tmp / "local", "run-key", None, 1),
        )
        self.spooler = Spooler(self.registry, self.spool, StoreOutlook, lambda generation: None)
        self.owners: dict[Generation, int] = {}

    def put(self, said: SpoolHeader) -> Path:
        said = replace(said, store=self.store.record.uuid)
        self.spool.put(said, content(said.snapshot.rank, said.snapshot.step))
        return self.spool.folder / said.name

    def recover(self) -> int:
        recovery = SpoolRecovery(self.registry, self.spool, self.spooler, 1)
        return recovery.recover(self.store, "r", self.spool.files(), self.owners)

    def held(self) -> dict[tuple[int, int], SlotState]:
        return {(one.rank, one.step): state for one, state in self.registry.snapshots()}

    def names(self) -> list[str]:
        return [file.path.name for file in self.spool.files()]


def content(rank: int, step: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng([rank, step]).integers(0, 256, SLOT, np.uint8)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def unowned(step: int, rank: int = 0, slot: int = 0) -> SpoolHeader:
    return spooled(step, rank, Generation("aaaaaaaa", 2), slot)


def test_the_next_trainer_finds_the_newest_ones_in_its_seat(node: Node) -> None:
    for step in (6, 7, 8):  # one more than slots
        node.put(unowned(step, slot=step % 2))
    node.put(unowned(7, rank=1))
    assert node.recover() == 3
    assert node.held() == {
        (0, 8): SlotState.WAITING,
        (0, 7): SlotState.WAITING,
        (1, 7): SlotState.WAITING,
    }
    trainer = Trainer(node.registry, 0, SECOND)
    assert (trainer.seated.slots, trainer.seated.slot_bytes) == (2, SLOT)
    for one, _ in node.registry.snapshots():
        with node.registry.peeking(one) as found:
            assert found is not None
            used = one.layout.end
            assert np.array_equal(found[1][:used], content(one.rank, one.step)[:used])
    assert node.owners == {Generation("aaaaaaaa", 2): 0}


def test_no_save_begins_before_all_ranks_are_back(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        node.put(unowned(7, rank=rank))
    begun: list[frozenset[int]] = []

    def work() -> None:
        course = node.registry.next_generation()
        if course is not None:
            begun.append(course.ranks)

    worker = threading.Thread(target=work)
    worker.start()
    install = SnapshotRegistry.install

    def slowly(*arguments: Any) -> bool:
        is_held = install(*arguments)
        time.sleep(0.05)  # another thread would run here, if it could
        return is_held

    monkeypatch.setattr(SnapshotRegistry, "install", slowly)
    assert node.recover() == 2
    worker.join()
    assert begun == [frozenset([0, 1])]


def test_a_damaged_one_is_removed_and_the_one_before_it_held(node: Node) -> None:
    node.put(unowned(6))
    path = node.put(unowned(7, slot=1))
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    assert node.recover() == 1
    assert node.held() == {(0, 6): SlotState.WAITING}
    assert node.names() == ["aaaaaaaa-0-6.snapshot"]


def test_one_of_another_version_is_left_alone(node: Node) -> None:
    path = node.put(unowned(7))
    data = bytearray(path.read_bytes())
    data[8] = 9
    path.write_bytes(data)
    assert node.recover() == 0
    assert node.held() == {}
    assert node.names() == [path.name]


def test_a_stale_one_is_removed(node: Node) -> None:
    run_ownership.claim(node.store, "r")
    node.put(spooled(7, generation=replace(MINE, owner=3)))
    assert node.recover() == 0
    assert node.held() == {}
    assert node.names() == []


def test_one_for_which_there_is_no_memory_stays_on_the_disk(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checkpointing.staging import host_memory

    node.put(unowned(7))
    monkeypatch.setattr(
        host_memory, "available", lambda: host_memory.FreeMemory(SLOT - 1, "a test")
    )
    assert node.recover() == 0
    assert node.held() == {}
    assert node.names() == ["aaaaaaaa-0-7.snapshot"]


def test_a_trainer_that_lives_on_keeps_its_own_memory(node: Node) -> None:
    node.put(unowned(7))
    node.recover()
    trainer = Trainer(node.registry, 0, Generation("aaaaaaaa", 2))
    assert trainer.seated.fd is None
    trainer.register_arena()
    trainer.put(7, 0)
    assert trainer.kinds("dropped") == []
    assert node.held() == {(0, 7): SlotState.WAITING}
