"""The service in this process: a registry, a worker and a store, with registered trainers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpointing.errors import StoreError
from checkpointing.format import object_keys
from checkpointing.service.checkpoint_service import CheckpointService
from checkpointing.service.config import Budget, ServiceConfig
from checkpointing.service.coordinator.rank_part_writer import RankPartWriter
from checkpointing.service.coordinator.save_announcement import SaveFate, announced, fate_of_save
from checkpointing.service.coordinator.save_coordinator import SaveCoordinator
from checkpointing.service.coordinator.save_leader import SaveLeader
from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.snapshots import Generation
from checkpointing.store.catalog import committed
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.sessions import run_ownership
from checkpointing.store.store import Store
from tests.unit.checkpointing.service.sample_trainers import SLOT, Trainer

ALONE = Generation("cccccccc", 1)
WITHIN_S = 180.0


class Hearing(Trainer):
    """A trainer of which a test awaits what it hears."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.changed = threading.Condition()
        super().__init__(*args, **kwargs)

    def notify(self, message: dict[str, Any]) -> None:
        with self.changed:
            self.heard.append(message)
            self.changed.notify_all()

    def hears(self, kind: str, step: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: step in self.kinds(kind), WITHIN_S), self.heard

    def save_noise(self, step: int) -> None:
        slot = self.claim(step)
        assert slot is not None
        noise = np.random.default_rng(step).integers(0, 256, SLOT, np.uint8)
        self.arena.view(slot * SLOT, SLOT)[:] = noise
        self.put(step, slot)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture
def service(store: Store) -> Iterator[CheckpointService]:
    made = CheckpointService(
        ServiceConfig(url=store.url, run="r", budget=Budget(cpu=1), linger_s=0.1)
    )
    yield made
    made.close()


def alone(
    service: CheckpointService, generation: Generation = ALONE, connection: int = 0
) -> Hearing:
    """The only rank of its job; half of the tensor is all that there is."""
    trainer = Hearing(service.registry, 0, generation, connection=connection, ranks=frozenset([0]))
    trainer.register_arena()
    return trainer


@pytest.fixture(autouse=True)
def _whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensor of the layout, of one rank."""
    from checkpointing.service.snapshots import SlotBox, SnapshotLayout
    from tests.unit.checkpointing.service import sample_trainers

    place = SlotBox("model/w", "float32", (8,), (0,), (8,), 0)
    monkeypatch.setattr(sample_trainers, "LAYOUT", SnapshotLayout("digest", (place,)))


def steps(store: Store) -> list[int]:
    return sorted(found.stored.save.step for found in committed(store, "r")[0])


def test_a_bug_costs_one_step(
    service: CheckpointService, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RankPartWriter.write

    def broken(self: RankPartWriter, save: Any, *args: Any) -> Any:
        if save.step == 1:
            raise ZeroDivisionError("a bug")
        return write(self, save, *args)

    monkeypatch.setattr(RankPartWriter, "write", broken)
    trainer = alone(service)
    trainer.save_noise(1)
    trainer.hears("failed", 1)
    assert "ZeroDivisionError: a bug" in service.status()["error"]
    trainer.save_noise(2)
    trainer.hears("committed", 2)
    assert steps(store) == [2]
    assert service.status()["error"] is None


def test_a_bug_in_prune_costs_nothing(
    service: CheckpointService, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: SaveCoordinator, round_: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(SaveCoordinator, "prune", broken)
    trainer = alone(service)
    for step in (1, 2):
        trainer.save_noise(step)
        trainer.hears("committed", step)
    assert steps(store) == [1, 2]
    assert trainer.kinds("failed") == []


def test_a_failed_save_is_gone_on_with_and_announced_once(
    service: CheckpointService, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GenerationState, "retry", GenerationState.try_now)
    commit, announced_by = SaveLeader.commit, []

    def failing(self: SaveLeader, save: Any, **options: Any) -> Any:
        announced_by.append(save)
        if len(announced_by) < 3:
            raise StoreError("out of reach")
        return commit(self, save, **options)

    monkeypatch.setattr(SaveLeader, "commit", failing)
    trainer = alone(service)
    trainer.save_noise(1)
    trainer.hears("committed", 1)
    assert len(set(announced_by)) == 1
    assert trainer.kinds("failed") == [1, 1]
    assert trainer.kinds("written") == [1]  # only once


def test_a_run_that_was_taken_over_is_given_up(service: CheckpointService, store: Store) -> None:
    trainer = alone(service, Generation("cccccccc", 1, run_ownership.claim(store, "r")))
    trainer.save_noise(1)
    trainer.hears("committed", 1)
    run_ownership.claim(store, "r")
    trainer.save_noise(2)
    trainer.hears("failed", 2)
    assert service.registry.rest(WITHIN_S)
    assert service.registry.is_idle()  # it is not tried for ever
    assert steps(store) == [1]


def test_a_follower_whose_leader_takes_the_save_back_gives_it_up(
    service: CheckpointService, store: Store
) -> None:
    generation = Generation("dddddddd", 2)
    leader = SaveLeader(store, "r", generation)
    save = leader.begin(1)
    trainer = Hearing(service.registry, 1, generation, ranks=frozenset([1])).register_arena()
    assert isinstance(trainer, Hearing)
    trainer.save_noise(1)
    trainer.hears("written", 1)
    leader.close()  # it ends without a word
    trainer.hears("failed", 1)
    assert fate_of_save(store, save) is SaveFate.ABANDONED
    assert announced(store, "r", generation) is None


def test_a_follower_tells_of_a_step_that_its_rank_skips(
    service: CheckpointService, store: Store
) -> None:
    generation = Generation("dddddddd", 2)
    trainer = Hearing(service.registry, 1, generation, ranks=frozenset([1])).register_arena()
    service.registry.unstaged(1, trainer.notify, 1, 1)
    leader = SaveLeader(store, "r", generation)
    save = leader.begin(1)
    for _ in range(int(WITHIN_S / 0.05)):
        if fate_of_save(store, save) is SaveFate.ABANDONED:
            break
        threading.Event().wait(0.05)
    assert fate_of_save(store, save) is SaveFate.ABANDONED
    leader.close()


def test_a_follower_whose_leader_is_gone_for_good_does_not_wait_for_ever(
    service: CheckpointService, store: Store
) -> None:
    generation = Generation("dddddddd", 2)
    trainer = Hearing(service.registry, 1, generation, ranks=frozenset([1])).register_arena()
    assert isinstance(trainer, Hearing)
    trainer.save_noise(1)
    assert not service.registry.is_idle()
    trainer.leave()
    for _ in range(int(WITHIN_S / 0.05)):
        if service.registry.unsaved() == {}:
            break
        threading.Event().wait(0.05)
    assert service.registry.unsaved() == {}  # lost: after linger_s


def test_a_new_process_goes_on_with_a_save_that_a_killed_one_has_begun(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServiceConfig(url=store.url, run="r", budget=Budget(cpu=1))
    first = CheckpointService(config)
    hanging = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(SaveLeader, "commit", lambda *_, **__: hanging.wait())
        trainer = alone(first)
        trainer.save_noise(1)
        trainer.hears("written", 1)
        second = CheckpointService(config)
    other = Hearing(second.registry, 0, ALONE, ranks=frozenset([0]))
    other.arena = trainer.arena
    other.register_arena()
    other.put(1, 0)
    other.hears("committed", 1)
    assert second.status()["raw_bytes"] == 0  # the part was there
    (found,) = committed(store, "r")[0]
    expected = np.random.default_rng(1).integers(0, 256, SLOT, np.uint8)[:32].view(np.uint32)
    assert np.array_equal(Checkpoint(store, found.stored).read("model/w"), expected)
    second.close()
    hanging.set()
    first.registry.drain(0.0)


def test_a_rank_that_is_back_before_rank_0_hears_what_was_committed(
    service: CheckpointService, store: Store
) -> None:
    ranks = [Hearing(service.registry, rank).register_arena() for rank in (0, 1)]
    for step in (1, 2):
        for trainer in ranks:
            trainer.save(step)
        for trainer in ranks:
            trainer.hears("committed", step)
    second = CheckpointService(service.config)
    zero, one = (Hearing(second.registry, rank).register_arena() for rank in (0, 1))
    one.put(2, 1)
    zero.put(1, 0)  # and what it has staged after that is to come
    one.hears("committed", 2)
    zero.put(2, 1)
    zero.hears("committed", 2)
    second.close()


def test_who_comes_after_a_missed_commit_was_found_is_told_which_it_is(
    service: CheckpointService, store: Store
) -> None:
    trainer = alone(service)
    for step in (1, 2):
        trainer.save_noise(step)
        trainer.hears("committed", step)
    second = CheckpointService(service.config)
    again = alone(second)
    again.put(1, 0)  # whereupon it is found that 2 is there, too
    (course,) = second.registry._generation_states.values()
    deadline = time.monotonic() + WITHIN_S
    while course.settled < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    again.put(2, 1)
    again.hears("committed", 2)
    told = [message["id"] for message in again.heard if message["kind"] == "committed"]
    assert told == [committed(store, "r")[0][0].stored.save.id]
    second.close()


def test_what_a_service_ends_with_is_no_lease(service: CheckpointService, store: Store) -> None:
    trainer = alone(service)
    trainer.save_noise(1)
    trainer.hears("committed", 1)
    assert service.registry.rest(WITHIN_S)
    trainer.leave(goodbye=True)
    service.close()
    assert store.storage.list(object_keys.LEASES) == []
