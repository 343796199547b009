"""The registry: which rank has which slots, what is held, and what becomes of it. Without sockets
and stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.registry import snapshot_registry
from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from tests.unit.checkpointing.service.sample_trainers import FIRST, SECOND, SLOT, Trainer, snapshot

pytestmark = pytest.mark.usefixtures("no_waiting")


@pytest.fixture
def hall() -> SnapshotRegistry:
    return SnapshotRegistry()


@pytest.fixture
def two(hall: SnapshotRegistry) -> tuple[Trainer, Trainer]:
    return Trainer(hall, 0).register_arena(), Trainer(hall, 1).register_arena()


def course_of(hall: SnapshotRegistry) -> GenerationState:
    course = hall.next_generation()
    assert course is not None
    return course


def states(hall: SnapshotRegistry) -> dict[tuple[int, int], SlotState]:
    return {(one.rank, one.step): state for one, state in hall.snapshots()}


class TestSaving:
    def test_what_is_staged_is_wanted_then_written_then_durable(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        for trainer in two:
            trainer.save(1)
        course = course_of(hall)
        assert hall.wanted(course) == [1]
        assert not hall.is_idle()
        hall.begin(course, 1)
        assert set(states(hall).values()) == {SlotState.WRITING}
        assert hall.wanted(course) == []
        assert hall.status()["writing"] == 1
        hall.settled(course, 1)
        assert set(states(hall).values()) == {SlotState.DURABLE}
        assert hall.status()["writing"] is None

    def test_who_comes_back_between_the_news_of_a_commit_and_its_being_noted_hears_of_it(
        self, hall: SnapshotRegistry
    ) -> None:
        """Of a service that was started again, where a part is in the store already."""
        first = Trainer(hall, 0).register_arena()
        first.save(1)
        course = course_of(hall)
        hall.begin(course, 1)
        hall.notify(FIRST, "committed", step=1, id="1-aaaaaaaa")
        late = Trainer(hall, 1).register_arena()
        late.put(1, 0)
        hall.settled(course, 1)
        assert (first.kinds("committed"), late.kinds("committed")) == ([1], [1])
        assert set(states(hall).values()) == {SlotState.DURABLE}

    def test_what_comes_after_its_step_was_begun_is_kept_for_it(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        two[0].save(1)
        hall.begin(course_of(hall), 1)
        two[1].save(1)
        assert states(hall)[1, 1] is SlotState.WRITING
        two[1].save(2)
        two[1].save(3)
        two[1].save(4)  # it has three slots
        assert (1, 1) in states(hall)

    def test_a_failed_save_waits_again(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        two[0].save(1)
        course = course_of(hall)
        hall.begin(course, 1)
        hall.set_state(course, 1, SlotState.WAITING)
        assert hall.wanted(course) == [1]
        assert course.saving is None

    def test_older_ones_that_wait_are_dropped_and_their_trainers_hear_it(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        for trainer in two:
            trainer.save(1)
            trainer.save(2)
        hall.settled(course_of(hall), 2)
        assert states(hall) == {(0, 2): SlotState.DURABLE, (1, 2): SlotState.DURABLE}
        assert [trainer.kinds("dropped") for trainer in two] == [[1], [1]]
        assert hall.ledger.dropped == 2

    def test_on_the_leading_node_only_what_rank_0_has_is_wanted(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        two[1].save(1)
        assert hall.is_idle()
        two[0].save(2)
        assert hall.wanted(course_of(hall)) == [2]

    def test_the_youngest_generation_is_first(self, hall: SnapshotRegistry) -> None:
        Trainer(hall, 0).register_arena().save(1)
        young = Trainer(hall, 1, SECOND, ranks=frozenset([1])).register_arena()
        young.save(1)
        assert course_of(hall).generation == SECOND


class TestReading:
    def test_the_memory_of_the_slot_is_read(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall).register_arena()
        slot = trainer.claim(1)
        assert slot is not None
        trainer.arena.view(slot * SLOT, SLOT)[:] = 7
        trainer.put(1, slot)
        with hall.reading(FIRST, 0, 1) as taken:
            assert taken is not None
            assert taken.snapshot.step == 1
            assert np.array_equal(taken.memory, np.full(SLOT, 7, np.uint8))

    def test_what_is_read_is_not_filled_anew_whatever_becomes_of_it(
        self, hall: SnapshotRegistry
    ) -> None:
        trainer = Trainer(hall, slots=2).register_arena()
        trainer.save(1)
        course = course_of(hall)
        with hall.reading(FIRST, 0, 1):
            hall.set_state(course, 1, SlotState.LOST)
            assert [trainer.save(step) for step in (2, 3)] == [1, None]
        assert trainer.save(4) == 0

    def test_memory_that_is_read_lives_on_when_its_trainer_leaves(
        self, hall: SnapshotRegistry
    ) -> None:
        trainer = Trainer(hall).register_arena()
        trainer.save(1)
        with hall.reading(FIRST, 0, 1) as taken:
            trainer.leave(goodbye=True)
            trainer.arena.close()
            assert taken is not None
            assert int(taken.memory.sum()) == 0

    def test_it_waits_for_a_rank_that_may_come(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall).register_arena()
        timer = threading.Timer(0.05, trainer.save, [1])
        timer.start()
        with hall.reading(FIRST, 0, 1) as taken:
            assert taken is not None
        timer.join()

    @pytest.mark.parametrize("how", ["skips", "goes on", "says goodbye", "dies", "is replaced"])
    def test_it_does_not_wait_for_a_rank_that_cannot_come(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer], how: str
    ) -> None:
        one = two[1]
        if how == "skips":
            hall.unstaged(1, one.notify, 1, 1)
            assert hall.ledger.skipped == 1
        elif how == "goes on":
            one.save(2)
        elif how == "says goodbye":
            one.leave(goodbye=True)
        elif how == "dies":
            one.leave()
        else:
            one.leave()
            Trainer(hall, 1, SECOND, connection=1)
        with hall.reading(FIRST, 1, 1) as taken:
            assert taken is None

    def test_a_claimed_step_may_come_though_it_was_skipped_before(
        self, hall: SnapshotRegistry
    ) -> None:
        trainer = Trainer(hall).register_arena()
        hall.unstaged(0, trainer.notify, 1, 0)
        slot = trainer.claim(1)
        assert slot is not None
        timer = threading.Timer(0.05, trainer.put, [1, slot])
        timer.start()
        with hall.reading(FIRST, 0, 1) as taken:
            assert taken is not None
        timer.join()

    def test_a_drain_does_not_wait_for_long(
        self, hall: SnapshotRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(snapshot_registry, "HURRY_S", 0.0)
        Trainer(hall).register_arena()
        hall.drain(3600.0)
        with hall.reading(FIRST, 0, 1) as taken:
            assert taken is None


class TestStagingTwice:
    def test_it_changes_nothing(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall).register_arena()
        slot = trainer.save(1)
        assert slot is not None
        course = course_of(hall)
        for state in (SlotState.WAITING, SlotState.WRITING, SlotState.LOST):
            hall.set_state(course, 1, state)
            trainer.put(1, slot)
            assert states(hall) == {(0, 1): state}
        assert hall.ledger.staged == 1

    def test_who_missed_a_commit_hears_of_it(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall).register_arena()
        slot = trainer.save(1)
        assert slot is not None
        hall.notify(FIRST, "committed", step=1, id="x")
        hall.settled(course_of(hall), 1)
        trainer.heard.clear()
        trainer.put(1, slot)
        assert trainer.heard == [{"kind": "committed", "step": 1, "id": "x"}]

    def test_to_a_new_service_what_is_older_than_a_commit_is_nothing_to_save(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        two[0].save(2)
        hall.settled(course_of(hall), 2)
        for step in (1, 2):
            two[1].save(step)
        assert states(hall) == {
            (0, 2): SlotState.DURABLE,
            (1, 1): SlotState.LOST,
            (1, 2): SlotState.DURABLE,
        }
        assert two[1].kinds("committed") == [2]


class TestSeats:
    def test_who_comes_back_finds_what_was_left(self, hall: SnapshotRegistry) -> None:
        first = Trainer(hall).register_arena()
        assert first.seated.fd is None
        first.save(1)
        first.leave()
        second = Trainer(hall, 0, SECOND, connection=1)
        assert (second.seated.slots, second.seated.slot_bytes) == (3, SLOT)
        assert second.seated.fd is not None
        assert states(hall) == {(0, 1): SlotState.WAITING}

    def test_after_a_goodbye_or_without_a_snapshot_nothing_is_left(
        self, hall: SnapshotRegistry
    ) -> None:
        for goodbye in (True, False):
            trainer = Trainer(hall).register_arena()
            if goodbye:
                trainer.save(1)
            trainer.leave(goodbye=goodbye)
            assert hall.status()["ranks"] == []

    def test_the_latest_connection_has_the_seat(self, hall: SnapshotRegistry) -> None:
        old = Trainer(hall, connection=1).register_arena()
        new = Trainer(hall, connection=2)
        with pytest.raises(ServiceError, match="another trainer"):
            old.claim(1)
        with pytest.raises(ServiceError, match="another trainer"):
            old.put(1, 0)
        old.leave(goodbye=True)
        assert not hall.alone_s()
        new.register_arena().save(1)
        with pytest.raises(ServiceError, match="newer connection"):
            Trainer(hall, connection=1)

    def test_memory_that_a_living_trainer_may_write_to_is_not_handed_over(
        self, hall: SnapshotRegistry
    ) -> None:
        old = Trainer(hall).register_arena()
        old.save(1)
        new = Trainer(hall, generation=SECOND, connection=1)
        assert new.seated.fd is None
        assert states(hall) == {}  # it is still written, but nobody can restore from it
        assert course_of(hall).generation == FIRST
        new.register_arena()
        new.save(2)
        assert states(hall) == {(0, 2): SlotState.WAITING}

    def test_what_a_dying_trainer_has_said_is_heard_before_the_next_one_sits_down(
        self, hall: SnapshotRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(snapshot_registry, "HANDOVER_S", 60.0)
        old = Trainer(hall).register_arena()
        slot = old.claim(1)
        assert slot is not None
        found: list[Trainer] = []
        joining = threading.Thread(
            target=lambda: found.append(Trainer(hall, 0, SECOND, connection=1))
        )
        joining.start()
        old.put(1, slot)
        assert not found
        old.leave()
        joining.join()
        assert found[0].seated.slots == 3
        assert states(hall) == {(0, 1): SlotState.WAITING}

    def test_the_same_memory_again_keeps_what_is_there(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall).register_arena()
        trainer.save(1)
        trainer.register_arena()
        assert states(hall) == {(0, 1): SlotState.WAITING}

    def test_other_memory_drops_what_waits(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall).register_arena()
        trainer.save(1)
        trainer.arena = Trainer(hall, 1).arena
        trainer.register_arena()
        assert states(hall) == {}
        assert trainer.kinds("dropped") == [1]

    def test_memory_divided_anew_is_not_filled_while_it_is_read(
        self, hall: SnapshotRegistry
    ) -> None:
        trainer = Trainer(hall, slots=4).register_arena()
        trainer.save(1)
        with hall.reading(FIRST, 0, 1):
            trainer.slots = 2
            trainer.register_arena()
            assert trainer.claim(2) is None
        assert trainer.save(3) == 0
        assert len(hall.status()["ranks"][0]["slots"]) == 2

    def test_slots_that_are_not_in_the_memory_are_refused(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall)
        for slots, slot_bytes in ((4, SLOT), (0, SLOT), (1, 0), (-1, -SLOT)):
            arena_layout = replace(trainer.arena_layout(), slots=slots, slot_bytes=slot_bytes)
            with pytest.raises(ServiceError, match="do not fit"):
                hall.register_arena(0, trainer.notify, arena_layout)

    def test_snapshots_that_cannot_be_there_are_refused(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall)
        wrong = [snapshot(), snapshot(slot=3), snapshot(rank=1), snapshot(generation=SECOND)]
        for index, one in enumerate(wrong):
            if index == 1:
                trainer.register_arena()
            with pytest.raises(ServiceError):
                hall.put(0, trainer.notify, one)


class TestGenerations:
    def test_what_an_earlier_one_left_goes_when_the_next_has_resumed(
        self, hall: SnapshotRegistry
    ) -> None:
        old = [Trainer(hall, rank).register_arena() for rank in (0, 1)]
        for trainer in old:
            trainer.save(1)
        hall.begin(course_of(hall), 1)
        for trainer in old:
            trainer.save(2)
            trainer.leave()
        new = Trainer(hall, 0, SECOND, connection=2)
        hall.resume(SECOND)
        assert states(hall) == {(0, 1): SlotState.WRITING, (1, 1): SlotState.WRITING}
        hall.settled(course_of_first(hall), 1)
        assert states(hall) == {}
        assert [seat["rank"] for seat in hall.status()["ranks"]] == [0]
        assert new.heard == []

    def test_but_not_while_a_trainer_sits_there_as_one_of_it(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        for trainer in two:
            trainer.save(1)
        hall.join(0, frozenset([0, 1]), SECOND, two[0].notify, 0)
        hall.resume(SECOND)
        assert states(hall) == {(0, 1): SlotState.WAITING, (1, 1): SlotState.WAITING}
        hall.join(1, frozenset([0, 1]), SECOND, two[1].notify, 0)
        hall.resume(SECOND)
        assert states(hall) == {}
        assert hall.gives_up(FIRST)
        assert not hall.gives_up(SECOND)


def course_of_first(hall: SnapshotRegistry) -> GenerationState:
    return hall._generation_states[FIRST]


class TestEnding:
    def test_a_drain_ends_when_nothing_is_left_and_nobody_is_here(
        self, hall: SnapshotRegistry
    ) -> None:
        trainer = Trainer(hall).register_arena()
        trainer.save(1)
        hall.drain(3600.0)
        course = course_of(hall)
        hall.settled(course, 1)
        timer = threading.Timer(0.05, trainer.leave)
        timer.start()
        assert hall.next_generation() is None
        timer.join()

    def test_nobody_joins_a_service_that_is_ending(self, hall: SnapshotRegistry) -> None:
        assert hall.end_if(lambda now: "why" if now.is_empty else None) == "why"
        with pytest.raises(ConnectionError, match="ending"):
            Trainer(hall)

    def test_a_situation_that_nobody_ends_lets_trainers_in(self, hall: SnapshotRegistry) -> None:
        assert hall.end_if(lambda now: None) is None
        Trainer(hall)
        assert hall.end_if(lambda now: str(now.was_joined)) == "True"

    def test_the_lag_is_that_of_the_oldest_unsaved(self, hall: SnapshotRegistry) -> None:
        trainer = Trainer(hall).register_arena()
        assert hall.status()["lag_s"] == 0.0
        for slot, age_s in enumerate((500.0, 100.0)):
            old = replace(snapshot(step=slot + 1, slot=slot), created=time.time() - age_s)
            hall.put(0, trainer.notify, old)
        assert hall.status()["lag_s"] == pytest.approx(500.0, abs=60.0)
        hall.settled(course_of(hall), 2)
        assert hall.status()["lag_s"] == 0.0

    def test_unsaved_steps_are_told_with_their_ranks(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        two[0].save(1)
        two[1].save(1)
        two[1].save(2)
        assert hall.unsaved() == {1: [0, 1], 2: [1]}


class TestLostRanks:
    def test_who_waits_for_others_looks_again_once_ranks_are_lost(
        self, hall: SnapshotRegistry
    ) -> None:
        waits = threading.Thread(target=hall.pause, args=(3600.0,), daemon=True)
        waits.start()
        hall.set_lost_ranks(frozenset())
        waits.join(0.2)
        assert waits.is_alive(), "none is lost"
        hall.set_lost_ranks(frozenset({0}))
        waits.join(60.0)
        assert not waits.is_alive()
        assert hall.lost_ranks == {0}

    def test_a_wait_ends_with_its_time(self, hall: SnapshotRegistry) -> None:
        hall.set_lost_ranks(frozenset({0}))
        hall.pause(0.0)

    def test_what_waits_for_an_announcement_is_looked_at_again(
        self, hall: SnapshotRegistry, two: tuple[Trainer, Trainer]
    ) -> None:
        for trainer in two:
            trainer.save(1)
        course = course_of(hall)
        course.due_s = time.monotonic() + 3600.0
        found: list[GenerationState | None] = []
        looks = threading.Thread(target=lambda: found.append(hall.next_generation()), daemon=True)
        looks.start()
        looks.join(0.2)
        assert not found
        hall.set_lost_ranks(frozenset({7}))
        looks.join(60.0)
        assert found == [course]


@pytest.fixture(autouse=True)
def _closed(hall: SnapshotRegistry) -> Iterator[None]:
    yield
    hall.drain(0.0)
