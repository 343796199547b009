"""Snapshots that came from elsewhere and lie in the registry as if a trainer had left them."""

from __future__ import annotations

import threading

import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.registry.rank_slots import ArenaLayout
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.registry.snapshot_registry import SnapshotRead, SnapshotRegistry
from checkpointing.staging.arena import Arena
from tests.unit.checkpointing.service.sample_trainers import SECOND, SLOT, Trainer, snapshot


def memory() -> ArenaLayout:
    return ArenaLayout(Arena.create(SLOT), 1, SLOT)


def held(registry: SnapshotRegistry) -> dict[tuple[int, int], SlotState]:
    return {(one.rank, one.step): state for one, state in registry.snapshots()}


def test_it_is_wanted_and_led_where_rank_0_is() -> None:
    registry = SnapshotRegistry()
    assert registry.install(snapshot(0, 7), memory())
    current = registry.next_generation()
    assert current is not None
    assert current.leads
    assert registry.wanted(current) == [7]


def test_the_next_trainer_of_the_rank_finds_it() -> None:
    registry = SnapshotRegistry()
    registry.install(snapshot(0, 7), memory())
    trainer = Trainer(registry, 0, SECOND)
    assert (trainer.seated.slots, trainer.seated.slot_bytes) == (1, SLOT)
    assert held(registry) == {(0, 7): SlotState.WAITING}


def test_a_trainer_that_is_registered_is_not_disturbed() -> None:
    registry = SnapshotRegistry()
    Trainer(registry, 0).register_arena().save(3)
    assert not registry.install(snapshot(0, 7), memory())
    assert held(registry) == {(0, 3): SlotState.WAITING}


def test_only_what_is_newer_takes_the_place() -> None:
    registry = SnapshotRegistry()
    registry.install(snapshot(0, 7), memory())
    assert not registry.install(snapshot(0, 7), memory())
    assert registry.install(snapshot(0, 8), memory())
    assert held(registry) == {(0, 8): SlotState.WAITING}


def test_nothing_is_held_of_a_generation_that_is_over() -> None:
    registry = SnapshotRegistry()
    registry.install(snapshot(0, 7), memory())
    registry.resume(SECOND)
    assert not registry.install(snapshot(1, 7), memory())
    assert held(registry) == {}


def test_memory_that_is_too_small_is_refused() -> None:
    registry = SnapshotRegistry()
    with pytest.raises(ServiceError, match="layout"):
        registry.install(snapshot(0, 7), ArenaLayout(Arena.create(4096), 1, 1))
    assert held(registry) == {}


def test_who_reads_it_while_its_own_trainer_comes_back_waits_for_that() -> None:
    registry = SnapshotRegistry()
    registry.install(snapshot(0, 7), memory())
    current = registry.next_generation()
    assert current is not None
    registry.begin(current, 7)
    trainer = Trainer(registry, 0)
    found: list[SnapshotRead | None] = []

    def read() -> None:
        with registry.reading(current.generation, 0, 7) as taken:
            found.append(taken)

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(0.2)
    assert found == []
    trainer.register_arena().save(7)
    reader.join(60.0)
    assert found[0] is not None
    assert found[0].snapshot.step == 7
