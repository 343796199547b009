"""The registry, for ranks whose states come in buckets: what is kept of them, and when one is
lost."""

from __future__ import annotations

import os

import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.registry.rank_slots import ArenaLayout
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.save_errors import ImpossibleSaveError
from checkpointing.staging.arena import Arena
from tests.unit.checkpointing.service.sample_trainers import FIRST, SLOT, Trainer, snapshot

pytestmark = pytest.mark.usefixtures("no_waiting")

BYTES = 32  # of the one part that a state here has


class Streaming(Trainer):
    """One with two buckets."""

    def arena_layout(self) -> ArenaLayout:
        return ArenaLayout(Arena.attach(os.dup(self.arena.fd)), 2, SLOT, 2)

    def begin(self, step: int) -> None:
        slot = self.claim(step)
        assert slot is not None
        one = snapshot(self.rank, step, slot, self.generation)
        stream = self.registry.stream(self.rank, self.notify, one)
        self.registry.put(self.rank, self.notify, one, stream)

    def fill(self, step: int) -> None:
        self.registry.fill(self.rank, self.notify, step, 0, 0, BYTES)

    def unread(self) -> list[str]:
        return [message["error"] for message in self.heard if message["kind"] == "unread"]


@pytest.fixture
def registry() -> SnapshotRegistry:
    return SnapshotRegistry()


@pytest.fixture
def trainer(registry: SnapshotRegistry) -> Streaming:
    made = Streaming(registry)
    made.register_arena()
    return made


def test_a_state_is_wanted_before_it_is_whole_and_held_once_it_is(
    registry: SnapshotRegistry, trainer: Streaming
) -> None:
    trainer.begin(1)
    assert registry.snapshots() == []
    current = registry.next_generation()
    assert current is not None
    assert registry.wanted(current) == [1]
    trainer.fill(1)
    assert [state for _, state in registry.snapshots()] == [SlotState.WAITING]
    assert registry.not_durable() == []  # there is nothing whole to copy to anywhere
    with registry.reading(FIRST, 0, 1) as taken:
        assert taken is not None
        assert taken.stream is not None
        pieces = [piece for piece in taken.stream.pieces(lambda: False) if piece is not None]
        assert [piece.name for piece in pieces] == ["model/w"]
        taken.stream.done(BYTES)
    assert trainer.kinds("emptied") == [1]
    registry.settled(current, 1)
    assert trainer.unread() == []


def test_a_dead_trainers_half_state_is_lost_and_a_whole_one_is_not(
    registry: SnapshotRegistry, trainer: Streaming
) -> None:
    trainer.begin(1)
    trainer.fill(1)
    trainer.begin(2)
    with registry.reading(FIRST, 0, 2) as taken:
        assert taken is not None
        assert taken.stream is not None
        coming = taken.stream.pieces(lambda: False)
        assert next(coming) is None
        trainer.leave()
        with pytest.raises(ImpossibleSaveError, match="its trainer has ended"):
            next(coming)
    assert [(one.step, state) for one, state in registry.snapshots()] == [(1, SlotState.WAITING)]
    with registry.reading(FIRST, 0, 2) as taken:
        assert taken is None
    assert Streaming(registry, connection=1).seated.fd is None, "there is nothing to be loaded from"


def test_what_its_trainer_gives_up_is_not_waited_for(
    registry: SnapshotRegistry, trainer: Streaming
) -> None:
    trainer.begin(1)
    registry.unstaged(0, trainer.notify, 1, 0)
    assert trainer.unread() == ["its trainer has given it up"]
    with registry.reading(FIRST, 0, 1) as taken:
        assert taken is None
    with pytest.raises(ServiceError, match="is no longer being read"):
        trainer.fill(1)


def test_what_cannot_be_saved_is_not_read_on_and_why_is_told(
    registry: SnapshotRegistry, trainer: Streaming
) -> None:
    trainer.begin(1)
    current = registry.next_generation()
    assert current is not None
    registry.begin(current, 1)
    registry.set_state(current, 1, SlotState.LOST, "another rank has failed")
    assert trainer.unread() == ["another rank has failed"]


def test_a_service_that_was_started_again_has_nothing_to_read(
    registry: SnapshotRegistry, trainer: Streaming
) -> None:
    trainer.put(1, 0)
    with registry.reading(FIRST, 0, 1) as taken:
        assert taken is not None
        assert taken.stream is not None
        with pytest.raises(ImpossibleSaveError, match="the service that was reading it died"):
            next(taken.stream.pieces(lambda: False))


def test_slots_have_no_streams(registry: SnapshotRegistry) -> None:
    trainer = Trainer(registry).register_arena()
    with pytest.raises(ServiceError, match="has not registered buckets"):
        registry.stream(0, trainer.notify, snapshot())


def test_buckets_have_to_be_in_the_memory() -> None:
    with pytest.raises(ServiceError, match="3 buckets of 4096 bytes do not fit"):
        ArenaLayout(Arena.create(2 * SLOT), 2, SLOT, 3).check()
