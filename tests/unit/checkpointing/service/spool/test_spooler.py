"""When snapshots get a copy on the node's own disk, and when that goes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.registry.rank_slots import RegisteredSnapshot
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.snapshots import Generation
from checkpointing.service.spool.save_tier_choice import SaveRates
from checkpointing.service.spool.spool_folder import SpoolFolder
from checkpointing.service.spool.spooler import Spooler, StoreOutlook, created
from tests.unit.checkpointing.service.sample_trainers import FIRST, SECOND, Trainer, snapshot

SLOW, FAST = SaveRates(store=1e-3), SaveRates(store=1e9)


class Place:
    """A hall with a spool; the thread of the spooler does not run."""

    def __init__(self, tmp: Path, *, has_disk: bool = True, bound: int | None = None) -> None:
        self.registry, self.ahead = SnapshotRegistry(), StoreOutlook(SLOW)
        self.spool = SpoolFolder(tmp / "local", "run-key", bound, 1) if has_disk else None
        self.spooler = Spooler(self.registry, self.spool, lambda: self.ahead, lambda generation: 3)

    def steps(self) -> list[tuple[str, int]]:
        assert self.spool is not None
        return [(file.generation, file.step) for file in self.spool.files()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def save(
    trainer: Trainer, step: int, deadline_s: float | None = None, created: float = 0.0
) -> None:
    slot = trainer.claim(step)
    assert slot is not None
    one = snapshot(trainer.rank, step, slot, trainer.generation)
    one = replace(one, deadline_s=deadline_s, created=created)
    trainer.registry.put(trainer.rank, trainer.notify, one)


def settle(place: Place, step: int, generation: Generation = FIRST) -> None:
    course = place.registry._generation_states[generation]
    saved = created(place.registry, generation, step)
    place.registry.settled(course, step)
    place.spooler.durable(generation, step, saved)
    place.spooler.consider()


def test_without_a_deadline_nothing_is_copied_or_chosen(place: Place) -> None:
    trainer = Trainer(place.registry).register_arena()
    save(trainer, 1)
    place.spooler.consider()
    assert place.steps() == []
    assert trainer.heard == []


def test_what_the_store_has_in_time_is_not_copied(place: Place) -> None:
    place.ahead = StoreOutlook(FAST)
    trainer = Trainer(place.registry).register_arena()
    save(trainer, 1, deadline_s=60.0)
    place.spooler.consider()
    assert place.steps() == []
    assert [m["tier"] for m in trainer.heard if m["kind"] == "tier"] == ["store"]


def test_what_it_has_not_is_copied_once_and_told(place: Place) -> None:
    trainers = [Trainer(place.registry, rank).register_arena() for rank in (0, 1)]
    for trainer in trainers:
        save(trainer, 1, deadline_s=60.0)
    for _ in range(2):
        place.spooler.consider()
    assert place.steps() == [("aaaaaaaa", 1)] * 2
    for trainer in trainers:
        assert [m["tier"] for m in trainer.heard if m["kind"] == "tier"] == ["local"]
        assert trainer.kinds("spooled") == [1]
    assert place.registry.ledger.spooled == 2
    assert place.registry.ledger.choice is not None
    assert place.registry.ledger.choice["outcome"] == "local copy"


def test_a_store_that_stops_after_it_was_chosen_costs_no_step(place: Place) -> None:
    place.ahead = StoreOutlook(FAST)
    trainer = Trainer(place.registry).register_arena()
    save(trainer, 1, deadline_s=0.9)  # within the last call
    place.spooler.consider()
    assert [m["tier"] for m in trainer.heard if m["kind"] == "tier"] == ["store"]
    assert place.steps() == [("aaaaaaaa", 1)]


def test_a_drain_is_a_deadline_for_all(place: Place) -> None:
    trainer = Trainer(place.registry).register_arena()
    for step in (1, 2):
        save(trainer, step)
    place.registry.drain(60.0)
    place.spooler.consider()
    assert place.steps() == [("aaaaaaaa", 1), ("aaaaaaaa", 2)]
    assert trainer.kinds("spooled") == [2, 1]  # the newest first


def test_what_comes_first_makes_what_comes_later_late(place: Place) -> None:
    """The first would be there in time, the second, behind it, would not."""
    trainer = Trainer(place.registry).register_arena()
    for step in (1, 2):
        save(trainer, step, deadline_s=100.0)
    place.ahead = StoreOutlook(SaveRates(store=32 / 50.0, local=1e9))  # 50 s for each
    place.spooler.consider()
    assert place.steps() == [("aaaaaaaa", 1)]


def test_at_the_end_all_is_copied_that_is_not_durable(place: Place) -> None:
    place.ahead = StoreOutlook(FAST)
    trainer = Trainer(place.registry).register_arena()
    for step in (1, 2):
        save(trainer, step)
    settle(place, 1)
    place.spooler.consider(ends=True)
    assert place.steps() == [("aaaaaaaa", 2)]


def test_it_goes_with_its_step_or_a_newer_one(place: Place) -> None:
    trainer = Trainer(place.registry).register_arena()
    for step in (1, 2, 3):
        save(trainer, step, deadline_s=60.0)
    place.spooler.consider()
    settle(place, 2)
    assert place.steps() == [("aaaaaaaa", 3)]
    settle(place, 3)
    assert place.steps() == []
    place.spooler.close()
    assert place.spool is not None
    assert not place.spool.folder.exists()


def test_a_later_generation_that_saves_makes_it_useless_and_an_earlier_one_does_not(
    place: Place,
) -> None:
    first = Trainer(place.registry).register_arena()
    save(first, 5, deadline_s=60.0, created=100.0)
    place.spooler.consider()
    first.leave()
    second = Trainer(place.registry, 0, SECOND).register_arena()
    place.registry._generation_states.setdefault(FIRST, GenerationState(FIRST, frozenset([0])))
    save(second, 3, deadline_s=60.0, created=200.0)
    place.spooler.consider()
    assert place.steps() == [("aaaaaaaa", 5), ("bbbbbbbb", 3)]
    place.spooler.durable(FIRST, 4, 90.0)
    place.spooler.consider()
    assert len(place.steps()) == 2
    settle(place, 3, SECOND)
    assert place.steps() == []


def test_files_that_nobody_knows_of_go_too(place: Place) -> None:
    assert place.spool is not None
    trainer = Trainer(place.registry).register_arena()
    save(trainer, 1, created=time.time() + 60)
    place.spool.root.mkdir(mode=0o700)
    place.spool.folder.mkdir(mode=0o700)
    (place.spool.folder / "cccccccc-0-9.snapshot").write_bytes(b"damaged")
    settle(place, 1)
    assert place.steps() == []


def test_a_copy_that_fails_is_counted_and_not_tried_again(tmp_path: Path) -> None:
    place = Place(tmp_path, bound=1)
    trainer = Trainer(place.registry).register_arena()
    save(trainer, 1, deadline_s=60.0)
    for _ in range(2):
        place.spooler.consider()
    assert place.steps() == []
    assert trainer.kinds("spool_failed") == [1]
    assert place.registry.ledger.spool_failed == 1
    assert "local_bytes=1" in str(place.registry.ledger.spool_error)


def test_without_a_disk_the_choice_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path, has_disk=False)
    trainer = Trainer(place.registry).register_arena()
    save(trainer, 1, deadline_s=60.0)
    place.spooler.consider()
    assert [m["tier"] for m in trainer.heard if m["kind"] == "tier"] == ["store"]
    assert not (tmp_path / "local").exists()


def test_a_slot_is_not_filled_while_it_is_copied(place: Place) -> None:
    trainer = Trainer(place.registry, slots=1).register_arena()
    save(trainer, 1)
    (held,) = place.registry.not_durable()
    assert isinstance(held, RegisteredSnapshot)
    settle(place, 1)
    with place.registry.peeking(held.snapshot) as found:
        assert found is None  # durable by now
    save(trainer, 2)
    (held,) = place.registry.not_durable()
    with place.registry.peeking(held.snapshot) as found:
        assert found is not None
        place.registry.settled(place.registry._generation_states[FIRST], 2)
        assert trainer.claim(3) is None
    assert trainer.claim(3) == 0
