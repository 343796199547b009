"""The seats of a node's ranks, as trainers use them. The one lock of the service is here; nothing
that may take long is done under it."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.service.registry.bucket_stream import BucketStream, is_torn
from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.registry.rank_slots import (
    ArenaLayout,
    Notify,
    RankSlots,
    RegisteredSnapshot,
)
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.service_counters import ServiceCounters
from checkpointing.service.snapshots import Generation, RankSnapshot

LEFT_S = 3.0  # in which a trainer that lost its connection comes back, if it is alive
HANDOVER_S = 5.0  # in which a dead trainer's connection ends


@dataclass(frozen=True)
class LeftoverMemory:
    """What a trainer finds in its seat: memory that an earlier one has left there, if one has."""

    fd: int | None = None  # the caller owns it
    slots: int = 0
    slot_bytes: int = 0


class RegistrySlots:
    """Thread-safe."""

    def __init__(self) -> None:
        self.ledger = ServiceCounters()
        self._changed = threading.Condition()
        self._seats: dict[int, RankSlots] = {}  # by rank
        self._courses: dict[Generation, GenerationState] = {}
        self._drained_s: float | None = None  # monotonic, since when; None: nobody has asked
        self.lost_ranks: frozenset[int] = frozenset()
        """Of other nodes, that are gone with all that they had."""
        self._stop_at_s: float | None = None
        self._is_shut = False  # nobody may join any more
        self._busy_with: GenerationState | None = None  # the worker is
        self._was_joined = False
        self.has_lodgers: Callable[[], bool] = lambda: False  # whether other nodes' ranks have
        self._began_s = self._seen_s = self._moved_s = time.monotonic()

    def join(
        self, rank: int, ranks: frozenset[int], generation: Generation, notify: Notify, visit: int
    ) -> LeftoverMemory:
        """A trainer takes its rank's seat, with what an earlier one has left there.

        Args:
            ranks: all that are on this node.
            visit: the number of its connection; later ones have higher ones.

        Raises:
            ConnectionError: the service is ending: another one is needed.
            ServiceError: a later connection has the seat.
        """
        with self._changed:
            self._await_former(rank, notify)
            if self._is_shut:
                raise ConnectionError("this service is ending")
            seat = self._seats.setdefault(rank, RankSlots(rank, generation))
            if seat.visit > visit:
                raise ServiceError(f"rank {rank} has a newer connection")
            if seat.notify is not None and seat.notify != notify:
                seat.is_contested = seat.furniture is not None
                seat.tear("another trainer has its seat")
                seat.notify({"kind": "displaced"})
            if seat.visit < 0 and seat.generation == generation:
                seat.clear()  # installed: its trainer lives on, and has what it staged itself
                seat.reached = -1  # and says so: who reads it now waits for that
            if seat.generation != generation:
                seat.reached = -1
            seat.generation, seat.notify, seat.visit = generation, notify, visit
            course = self._courses.setdefault(generation, GenerationState(generation, ranks))
            course.joined_s = time.monotonic()
            course.gone.pop(rank, None)
            self._was_joined = True
            self._changed.notify_all()
            return _seated(seat)

    def furnish(self, rank: int, notify: Notify, furniture: ArenaLayout) -> None:
        """The rank's snapshots lie in this memory from now on.

        Raises:
            ServiceError: it cannot hold them, or another trainer has the seat.
        """
        furniture.check()
        with self._changed:
            seat = self._seat(rank, notify)
            for snapshot in seat.furnish(furniture):
                self._dropped(seat, snapshot)
            self._changed.notify_all()

    def claim(self, rank: int, notify: Notify, step: int) -> int | None:
        """A slot for the snapshot of `step`; None, counted as skipped, if there is none now."""
        with self._changed:
            seat = self._seat(rank, notify)
            slot, dropped = seat.claim()
            if slot is None:
                seat.reached = max(seat.reached, step)
                self.ledger.skipped += 1
            else:  # also where the step was skipped before, and is tried once more
                seat.reached = min(seat.reached, step - 1)
            if dropped is not None:
                self._dropped(seat, dropped)
            self._changed.notify_all()
            return slot

    def unstaged(self, rank: int, notify: Notify, step: int, skipped: int) -> None:
        """The rank will not come with a snapshot of `step` or before, but those that it has staged.

        Args:
            skipped: steps that were not staged because the service did not answer.
        """
        with self._changed:
            seat = self._seat(rank, notify)
            seat.tear("its trainer has given it up", step)
            seat.reached = max(seat.reached, step)
            self.ledger.skipped += skipped
            self._changed.notify_all()

    def stream(self, rank: int, notify: Notify, snapshot: RankSnapshot) -> BucketStream:
        """For a snapshot that is going to come in the rank's buckets.

        Raises:
            ServiceError: it has none, or another trainer has the seat.
        """
        with self._changed:
            furniture = self._seat(rank, notify).furniture
            if furniture is None or not furniture.buckets:
                raise ServiceError(f"rank {rank} has no buckets here: send their memory first")
            memory = furniture.view(0)
        tell = functools.partial(self.tell, snapshot.generation)
        return BucketStream(snapshot, memory, furniture.slot_bytes, tell)

    def fill(
        self, rank: int, notify: Notify, step: int, number: int, bucket: int, size: int
    ) -> None:
        """A bucket is full with the next part of a snapshot that comes in buckets.

        Raises:
            ServiceError: it cannot be, or nobody reads that snapshot any more.
        """
        with self._changed:
            seat = self._seat(rank, notify)
            held = seat.find(seat.generation, step)
        if held is None or held.stream is None:
            raise ServiceError(f"step {step} of rank {rank} is not being read here any more")
        held.stream.fill(number, bucket, size)

    def put(
        self, rank: int, notify: Notify, snapshot: RankSnapshot, stream: BucketStream | None = None
    ) -> None:
        """A snapshot is whole in its slot. To say so a second time, after the connection was lost,
        does nothing.

        Args:
            stream: by which it is going to come instead. None for a snapshot in buckets: it has
                come, to a service before this one.

        Raises:
            ServiceError: it cannot be there, or another trainer has the seat.
        """
        with self._changed:
            seat = self._seat(rank, notify)
            seat.check(snapshot)
            course = self._courses.get(snapshot.generation)
            if snapshot.rank != rank or course is None:
                raise ServiceError(
                    f"rank {rank} cannot stage for rank {snapshot.rank} of generation "
                    f"{snapshot.generation.id}: join as it first"
                )
            before = seat.held[snapshot.slot]
            if before is not None and before.is_of(snapshot.generation, snapshot.step):
                self._tell_again(seat, course, snapshot)
                return
            if before is not None and before.state is SlotState.WAITING:
                self._dropped(seat, before.snapshot)
            if stream is None and seat.is_bucketed:
                stream = BucketStream.gone(
                    snapshot, functools.partial(self.tell, snapshot.generation)
                )
            seat.put(snapshot, _state_of(snapshot.step, course), stream)
            self._tell_again(seat, course, snapshot)
            self.ledger.staged += 1
            self._moved_s = time.monotonic()
            course.at_once()
            self._changed.notify_all()

    def install(
        self,
        snapshot: RankSnapshot,
        furniture: ArenaLayout,
        older: Sequence[RankSnapshot] = (),
        *,
        is_heir: bool = False,
    ) -> bool:
        """Hold a snapshot that came from elsewhere as one that a trainer of its rank has left here:
        it is written, and handed over to the next trainer.

        Args:
            furniture: with the snapshot in its slot; the seat's from now on, or closed here.
            older: others of the same rank and generation, that are in it too.
            is_heir: this node stands in for another one.

        Returns:
            Whether it is held: not if a trainer sits there with memory of its own, or something as
            new lies there.

        Raises:
            ServiceError: the memory cannot hold it.
        """
        furniture.check()
        for one in (*older, snapshot):
            furniture.check_holds(one)
        rank, generation = snapshot.rank, snapshot.generation
        with self._changed:
            seat, course = self._seats.get(rank), self._courses.get(generation)
            is_late = self._is_shut or (course is not None and course.is_over)
            if is_late or (seat is not None and not _gives_way(seat, snapshot)):
                furniture.arena.close()
                return False
            seat = self._seats.setdefault(rank, RankSlots(rank, generation))
            seat.generation = generation if seat.notify is None else seat.generation
            seat.furnish(furniture)
            course = self._courses.setdefault(generation, GenerationState(generation, frozenset()))
            if is_heir and rank == 0 and not course.leads:
                course.term += 1
            course.ranks |= {rank}
            course.gone.setdefault(rank, time.monotonic())
            reached = seat.reached
            for one in (*older, snapshot):
                seat.put(one, _state_of(one.step, course))
            seat.reached = reached if seat.generation != generation else seat.reached
            self._was_joined = True
            course.at_once()
            self._changed.notify_all()
            return True

    def hand_back(self, generation: Generation, ranks: frozenset[int]) -> None:
        """The node of these ranks is there again, and saves what was installed here."""
        with self._changed:
            course = self._courses.get(generation)
            if course is None:
                return
            for rank in ranks & course.ranks:
                seat = self._seats.get(rank)
                if seat is not None and (seat.notify is not None or seat.generation != generation):
                    continue
                course.ranks -= {rank}
                course.gone.pop(rank, None)
                if seat is not None and all(h.state is not SlotState.WRITING for h in seat.whole()):
                    self._remove(seat)
            self._changed.notify_all()

    def leave(self, rank: int, notify: Notify, *, goodbye: bool) -> None:
        """A trainer is gone. Without a goodbye, what it staged is kept for the next one."""
        with self._changed:
            seat = self._seats.get(rank)
            if seat is None or seat.notify != notify:
                return  # somebody else sits there by now
            seat.notify, self._seen_s = None, time.monotonic()
            course = self._courses[seat.generation]
            course.gone[rank] = self._seen_s + (0.0 if goodbye else LEFT_S)
            seat.tear("its trainer is gone")
            if goodbye or not any(seat.whole()):
                self._remove(seat)
            self._changed.notify_all()

    def resume(self, generation: Generation) -> None:
        """The generation goes on from what it has restored: what earlier ones left, and is not
        being written, is of no use any more, once no trainer sits here as one of them."""
        with self._changed:
            here = {seat.generation for seat in self._seats.values() if seat.notify}
            for course in self._courses.values():
                course.is_over |= course.generation not in here
            for seat in list(self._seats.values()):
                for held in list(seat.whole()):
                    self._forget_if_over(seat, held)
                is_held = any(held.state is SlotState.WRITING for held in seat.whole())
                if seat.generation != generation and seat.notify is None and not is_held:
                    self._remove(seat)
            self._changed.notify_all()

    def snapshots(self) -> list[tuple[RankSnapshot, SlotState]]:
        """All that are whole here, and can be handed over."""
        with self._changed:
            seats = [seat for seat in self._seats.values() if not seat.is_contested]
            found = [held for seat in seats for held in seat.whole() if not is_torn(held.stream)]
            return [(held.snapshot, held.state) for held in found]

    def tell(
        self, generation: Generation, kind: str, *, rank: int | None = None, **fields: Any
    ) -> None:
        """Tell the trainers of a generation, or one of them."""
        with self._changed:
            if kind == "committed" and (course := self._courses.get(generation)) is not None:
                course.committed = fields
            for seat in self._seats.values():
                if seat.generation == generation and seat.notify and rank in (None, seat.rank):
                    seat.notify({"kind": kind, **fields})

    # --- under the lock

    def _seat(self, rank: int, notify: Notify) -> RankSlots:
        seat = self._seats.get(rank)
        if seat is None or seat.notify != notify:
            raise ServiceError(
                f"rank {rank} has not joined by this connection, or another trainer of this rank "
                "came after it: end this one"
            )
        return seat

    def _await_former(self, rank: int, notify: Notify) -> None:
        """What a trainer that is gone has said last is heard before its seat is another's."""

        def is_free() -> bool:
            seat = self._seats.get(rank)
            return seat is None or seat.notify is None or seat.notify == notify

        self._changed.wait_for(is_free, HANDOVER_S)

    def _is_alone(self) -> bool:
        return all(seat.notify is None for seat in self._seats.values())

    def _forget_if_over(self, seat: RankSlots, held: RegisteredSnapshot) -> None:
        """Of a generation that another has gone on from, only what is being written stays."""
        generation = held.snapshot.generation
        course = self._courses.get(generation)
        if held.state is not SlotState.WRITING and (course is None or course.is_over):
            seat.forget(generation, held.snapshot.step)
            if seat.notify is None and seat.generation == generation and not any(seat.whole()):
                self._remove(seat)

    def _remove(self, seat: RankSlots) -> None:
        seat.clear()
        self._seats.pop(seat.rank, None)

    def _dropped(self, seat: RankSlots, snapshot: RankSnapshot) -> None:
        self.ledger.dropped += 1
        if seat.notify is not None and seat.generation == snapshot.generation:
            seat.notify({"kind": "dropped", "step": snapshot.step})

    def _tell_again(self, seat: RankSlots, course: GenerationState, snapshot: RankSnapshot) -> None:
        """What a trainer may have missed while it was not connected."""
        step, held = snapshot.step, seat.held[snapshot.slot]
        if seat.notify is not None and held is not None and held.state is SlotState.DURABLE:
            fields = course.committed if course.committed.get("step") == step else {"step": step}
            seat.notify({"kind": "committed", **fields})


def _seated(seat: RankSlots) -> LeftoverMemory:
    if seat.furniture is None or seat.is_contested or seat.is_bucketed:
        return LeftoverMemory()
    furniture = seat.furniture
    return LeftoverMemory(os.dup(furniture.arena.fd), furniture.slots, furniture.slot_bytes)


def _gives_way(seat: RankSlots, snapshot: RankSnapshot) -> bool:
    """Whether a seat without a trainer, or without memory of its trainer, has nothing as new."""
    steps = [held.snapshot.step for held in seat.whole()]
    is_free = seat.notify is None or seat.furniture is None
    return is_free and all(step < snapshot.step for step in steps)


def _state_of(step: int, course: GenerationState) -> SlotState:
    """Of a snapshot that comes now; what is older than a commit comes from before a restart."""
    if step == course.committed.get("step"):
        return SlotState.DURABLE  # also before that is settled
    if step == course.saving:
        return SlotState.WRITING
    if step <= course.settled:
        return SlotState.DURABLE if step == course.settled else SlotState.LOST
    return SlotState.WAITING
