"""Whoever was taken over saves a run no more, also if it held no lease at that moment."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest

from checkpointing.errors import SaveError
from checkpointing.format import object_keys
from checkpointing.format.object_keys import SaveId
from checkpointing.storage.memory_storage import MemoryStorage
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store import catalog
from checkpointing.store.repair.base_removal import flatten
from checkpointing.store.sessions import run_ownership
from checkpointing.store.sessions.run_takeover import take_over
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from tests.services.power_loss import LossyDisk, PowerLossError
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.saves import Values
from tests.unit.checkpointing.store.schedules.actors import Facts
from tests.unit.checkpointing.store.schedules.scripted_schedules import V, W, script

RUN = "a"
KEPT_OUT = (
    r"another process took over the run 'a' at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC from \S+:\d+"
)


class Process:
    """What one process of a job has: a store that it opened itself, and a session."""

    def __init__(self, root: str, run: str = RUN) -> None:
        storage = MemoryStorage(root) if root.startswith("memory:") else PosixStorage(root)
        self.store = Store.at(storage, create=True)
        self.session = Session(self.store, run)
        self._run = run

    def take_over(self) -> int:
        return take_over(self.store, self._run).owner

    def save(self, step: int, values: Values = V) -> SaveId:
        return saves.save(self.session, [RunChunkIndex(self.store, self._run)], step, values)

    def new_session(self) -> None:
        self.session.close()
        self.session = Session(self.store, self._run)

    @property
    def steps(self) -> set[int]:
        return {found.stored.save.step for found in catalog.committed(self.store, self._run)[0]}


@pytest.fixture(params=["memory", "posix"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory:/{tmp_path}" if request.param == "memory" else str(tmp_path / "store")


def test_an_idle_writer_that_was_taken_over_saves_no_more(root: str) -> None:
    one, other = Process(root), Process(root)
    one.take_over()
    one.save(100)
    assert one.store.storage.list(object_keys.LEASES) == [], "it is idle"
    assert other.take_over() == 2
    other.save(110, W)
    with pytest.raises(SaveError, match=KEPT_OUT):
        one.save(120)
    assert one.store.storage.list(object_keys.LEASES) == []
    one.new_session()
    with pytest.raises(SaveError, match="end this one, or restore"):
        one.save(120)
    other.save(120)
    assert other.steps == {100, 110, 120}


def test_who_takes_the_run_back_saves_on_and_the_other_one_no_more(root: str) -> None:
    one, other = Process(root), Process(root)
    assert [one.take_over(), other.take_over(), one.take_over()] == [1, 2, 3]
    one.save(1)
    with pytest.raises(SaveError, match=KEPT_OUT):
        other.save(2)
    assert one.steps == {1}


def test_who_never_took_over_joins_who_did_until_the_next_one_does(root: str) -> None:
    owner, guest = Process(root), Process(root)
    owner.take_over()
    guest.save(1)
    owner.save(2)
    guest.save(3)
    owner.take_over()
    with pytest.raises(SaveError, match=KEPT_OUT):
        guest.save(4)
    owner.save(4)
    Process(root).save(5)  # comes since then
    assert owner.steps == {1, 2, 3, 4, 5}


def test_other_runs_are_not_concerned(root: str) -> None:
    one, other = Process(root, "b"), Process(root)
    one.save(1)
    other.take_over()
    one.save(2)
    assert one.steps == {1, 2}


def test_looking_after_checkpoints_goes_on_for_everybody(root: str) -> None:
    one, other = Process(root), Process(root)
    one.save(1)
    other.take_over()
    (found,) = catalog.committed(one.store, RUN)[0]
    assert flatten(one.store, RUN, found) == found.stored.key
    with pytest.raises(SaveError, match=KEPT_OUT):
        one.save(2)


def test_another_process_of_the_owner_goes_by_its_number(root: str) -> None:
    trainer, helper = Process(root), Process(root)
    owner = trainer.take_over()
    helper.session = Session(helper.store, RUN, owner=owner)
    helper.save(1)
    Process(root).take_over()
    late = Process(root)
    late.session = Session(late.store, RUN, owner=owner)
    for taken_over in (helper, late):
        with pytest.raises(SaveError, match=KEPT_OUT):
            taken_over.save(2)


def test_only_the_last_owners_are_kept(root: str) -> None:
    process = Process(root)
    assert [process.take_over() for _ in range(8)] == list(range(1, 9))
    assert len(process.store.storage.list(object_keys.owners(RUN))) == 8  # removed together
    assert process.take_over() == 9
    kept = [entry.key for entry in process.store.storage.list(object_keys.owners(RUN))]
    assert kept == [object_keys.owner(RUN, number) for number in (6, 7, 8, 9)]
    assert run_ownership.newest(process.store, RUN) == 9


def test_an_owner_that_cannot_be_read_is_one_all_the_same(root: str) -> None:
    one, other = Process(root), Process(root)
    one.take_over()
    other.take_over()
    other.store.storage.replace(object_keys.owner(RUN, 2), b"{")
    with pytest.raises(SaveError, match=re.escape("took over the run 'a': end this one")):
        one.save(1)


def store_on(disk: LossyDisk) -> Store:
    """A store as a process opens it that is about to save."""
    storage = PosixStorage("/scratch/store", syscalls=disk)
    storage.replace("leases/clock", b"")
    return Store.at(storage, create=True)


def test_the_record_of_an_owner_is_durable_before_its_name_and_its_name_before_all_else() -> None:
    disk = LossyDisk()
    take_over(store_on(disk), RUN)
    store = store_on(disk)
    disk.calls.clear()
    take_over(store, RUN)
    changes = ("mkdir", "create", "writev", "fsync", "link", "rename", "unlink", "scandir")
    calls = [call.split() for call in disk.calls if call.startswith(changes)]
    folder = "/scratch/store/runs/a/owners"
    temporary = next(path for verb, path in calls if verb == "create")
    made = [call for call in calls if call[0] != "writev" and "/leases" not in call[1]]
    assert [[verb, path.rstrip("/")] for verb, path in made] == [
        ["scandir", folder],
        ["create", temporary],
        ["fsync", temporary],
        ["link", f"{folder}/0000000002"],
        ["unlink", temporary],
        ["fsync", folder],
    ]
    assert calls.index(["fsync", folder]) < calls.index(["scandir", "/scratch/store/leases/"])


def test_after_a_power_cut_an_owner_is_known_wherever_the_one_before_was_killed() -> None:
    killed_at = 0
    while True:
        disk = LossyDisk()
        store = store_on(disk)
        disk.stop_at = len(disk.calls) + killed_at
        try:
            take_over(store, RUN)
        except PowerLossError:
            is_over = False
        else:
            is_over = True
        disk.kill()
        number = take_over(store_on(disk), RUN).owner
        for cut in range(4):
            after = store_on(disk.power_cut(Random(cut)))
            assert run_ownership.newest(after, RUN) == number, f"killed at call {killed_at}"
        if is_over:
            return
        killed_at += 1


def test_of_two_that_take_over_at_the_same_moment_one_is_the_last() -> None:
    with script() as play:
        takers = [play.up_to(play.taker("a"), "create runs/a/owners/") for _ in range(2)]
        assert [taker.next for taker in takers] == [f"create {object_keys.owner('a', 1)}"] * 2
        play.finish(*takers)
        store = play.model.store()
        assert run_ownership.newest(store, "a") == 2
        assert len(store.storage.list(object_keys.owners("a"))) == 2


def test_a_save_is_ended_or_refused_wherever_it_stands() -> None:
    # at each of its operations in turn, somebody takes the run over
    ends: Counter[str] = Counter()
    before = 0
    while "not reached" not in ends:
        with script() as play:
            play.finish(play.taker("a"))
            saver = play.actor(partial(_save, facts=play.model.facts, owner=1))
            for _ in range(before):
                if not saver.ended:
                    play.model.scheduler.step(saver)
            is_over = saver.ended
            play.finish(play.taker("a"))
            there = play.ids("a")
            play.finish(saver)
            assert play.ids("a") == there, f"{before}: committed after the run was taken over"
            ends["not reached" if is_over else _end(saver.error)] += 1
            saver.error = None
        before += 1
    assert ends.keys() == {"taken over", "declared dead", "saved", "not reached"}


def _save(store: Store, facts: Facts, owner: int) -> None:
    with Session(store, RUN, owner=owner) as session:
        facts.begun[SaveId(RUN, 1, session.id)] = V
        facts.committed.append(saves.save(session, [RunChunkIndex(store, RUN)], 1, V))


def _end(error: BaseException | None) -> str:
    if error is None:
        return "saved"
    assert isinstance(error, SaveError)
    texts = {"declared dead": "declared dead", "another process took": "taken over"}
    return next((end for text, end in texts.items() if text in str(error)), "incomplete")
