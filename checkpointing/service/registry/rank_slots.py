"""The shared memory of one rank and the snapshots in it. Not thread-safe: the service's lock guards
it."""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import ServiceError
from checkpointing.service.registry.bucket_stream import BucketStream, is_torn
from checkpointing.service.registry.slot_choice import SlotState, SlotStatus, choose_next_slot
from checkpointing.service.snapshots import Generation, RankSnapshot
from checkpointing.staging.arena import Arena

Notify = Callable[[dict[str, Any]], None]  # sends a message to a trainer; never blocks

_orders = itertools.count()


@dataclass(frozen=True)
class RegisteredSnapshot:
    """A whole snapshot, or one that comes in buckets."""

    snapshot: RankSnapshot
    state: SlotState
    stream: BucketStream | None = None  # None: all of it lies in its slot
    order: int = field(default_factory=lambda: next(_orders))  # of arrival
    arrived_s: float = field(default_factory=time.monotonic)

    def is_of(self, generation: Generation, step: int) -> bool:
        return self.snapshot.generation == generation and self.snapshot.step == step


@dataclass(frozen=True)
class ArenaLayout:
    """The division of a rank's shared memory into slots for snapshots, or into buckets for parts of
    them.

    Attributes:
        slots: number of snapshots that are held; with buckets, of those that are on their way.
        slot_bytes: size of a slot, or of a bucket.
        buckets: number of buckets; 0: snapshots lie in slots.
    """

    arena: Arena
    slots: int
    slot_bytes: int
    buckets: int = 0

    def check(self) -> None:
        """Check that the slots or buckets fit into the memory.

        Raises:
            ServiceError: they do not.
        """
        count, what = (self.buckets, "buckets") if self.buckets else (self.slots, "slots")
        fits = self.slots > 0 and 0 < count * self.slot_bytes <= self.arena.size
        if not fits:
            raise ServiceError(
                f"{count} {what} of {self.slot_bytes} bytes do not fit into an arena of "
                f"{self.arena.size}"
            )

    def check_holds(self, snapshot: RankSnapshot) -> None:
        """Check that a snapshot fits into its slot.

        Raises:
            ServiceError: it does not.
        """
        if not 0 <= snapshot.slot < self.slots:
            raise ServiceError(f"rank {snapshot.rank} has no slot {snapshot.slot}")
        if snapshot.layout.end > self.slot_bytes and not self.buckets:
            raise ServiceError(
                f"rank {snapshot.rank}: a layout of {snapshot.layout.end} bytes does not fit in a "
                f"slot of {self.slot_bytes}"
            )

    def is_same_memory(self, other: ArenaLayout) -> bool:
        return os.path.sameopenfile(self.arena.fd, other.arena.fd)

    def has_same_slots(self, other: ArenaLayout) -> bool:
        mine = (self.slots, self.slot_bytes, self.buckets)
        return mine == (other.slots, other.slot_bytes, other.buckets)

    def view(self, slot: int) -> NDArray[np.uint8]:
        """Return the bytes of a slot, or of all buckets. The memory lives as long as the view is
        referenced."""
        if self.buckets:
            return self.arena.view(0, self.buckets * self.slot_bytes)
        return self.arena.view(slot * self.slot_bytes, self.slot_bytes)


@dataclass
class RankSlots:
    """The memory of one rank, whichever trainer uses it: when its trainer has died, the trainer of
    the next generation finds here what it left."""

    rank: int
    generation: Generation  # of the trainer that is connected, or was last
    notify: Notify | None = None  # None: no trainer is connected
    connection: int = -1  # number of the connection in use, or of the last one
    is_contested: bool = False  # an earlier trainer is alive and may write to the memory
    reached: int = -1  # the newest step that the trainer has staged or skipped
    arena_layout: ArenaLayout | None = None
    held: list[RegisteredSnapshot | None] = field(default_factory=list)  # by slot
    _readers: Counter[int] = field(default_factory=Counter)  # by slot
    _next: ArenaLayout | None = None  # takes effect as soon as nobody reads any more

    @property
    def is_bucketed(self) -> bool:
        return self.arena_layout is not None and self.arena_layout.buckets > 0

    @property
    def slots(self) -> list[SlotStatus]:
        """Return the state of each slot. A slot that is being read counts as being written,
        whatever its snapshot's state is."""
        return [
            SlotStatus(
                SlotState.WRITING
                if self._readers[index]
                else held.state
                if held
                else SlotState.EMPTY,
                held.snapshot.step if held else -1,
                held.order if held else -1,
            )
            for index, held in enumerate(self.held)
        ]

    def register_arena(self, new: ArenaLayout) -> list[RankSnapshot]:
        """Use this memory from now on; return the snapshots that waited in the memory before it and
        are dropped. If it is the same memory, divided in the same way, all snapshots stay."""
        old = self.arena_layout
        if old is not None and old.is_same_memory(new):
            if self._next is None and old.has_same_slots(new):
                new.arena.close()
                return []
            lost = self._forget_all()
            if self._next is not None:
                self._next.arena.close()
            self._next = new
            self._move_in()
            return lost
        lost = self._forget_all()
        self.clear()
        self._move(new)
        return lost

    def clear(self) -> None:
        """Free the memory; readers of it may continue."""
        for arena_layout in (self.arena_layout, self._next):
            if arena_layout is not None:
                arena_layout.arena.close()
        self._empty(range(len(self.held)), "its memory was released")
        self.arena_layout, self._next, self.held = None, None, []
        self._readers = Counter()

    def claim(self) -> tuple[int | None, RankSnapshot | None]:
        """Return a slot that may be filled now, and the waiting snapshot that is dropped for it."""
        slot = choose_next_slot(self.slots) if self._next is None else None
        if slot is None:
            return None, None
        before = self.held[slot]
        self._empty([slot], "it was replaced by a newer one")
        is_lost = before is not None and before.state is SlotState.WAITING
        return slot, before.snapshot if before is not None and is_lost else None

    def put(
        self, snapshot: RankSnapshot, state: SlotState, stream: BucketStream | None = None
    ) -> None:
        """Record that a slot holds this snapshot."""
        self._empty([snapshot.slot], "another one has replaced it")
        self.held[snapshot.slot] = RegisteredSnapshot(snapshot, SlotState.WAITING, stream)
        self.reached = max(self.reached, snapshot.step)
        self.set_state(snapshot.generation, snapshot.step, state)

    def check(self, snapshot: RankSnapshot) -> None:
        """Check that a snapshot can be in this memory.

        Raises:
            ServiceError: it cannot.
        """
        if self.arena_layout is None:
            raise ServiceError(f"rank {self.rank} has not registered memory for snapshots")
        self.arena_layout.check_holds(snapshot)

    def whole(self) -> Iterator[RegisteredSnapshot]:
        return (held for held in self.held if held is not None)

    def find(self, generation: Generation, step: int) -> RegisteredSnapshot | None:
        return next((held for held in self.whole() if held.is_of(generation, step)), None)

    def waiting(self, generation: Generation) -> list[int]:
        """Return the steps of whole snapshots that are not being written yet."""
        return [
            held.snapshot.step
            for held in self.whole()
            if held.snapshot.generation == generation and held.state is SlotState.WAITING
        ]

    def set_state(
        self, generation: Generation, step: int, state: SlotState, why: str = "it was not saved"
    ) -> None:
        """Set the state of the snapshot of a step.

        Args:
            why: the reason that a stream ends with, if it is not read on.
        """
        for index, held in enumerate(self.held):
            if held is not None and held.is_of(generation, step):
                self.held[index] = replace(held, state=state)
                if held.stream is not None and state in (SlotState.LOST, SlotState.DURABLE):
                    held.stream.end(why)

    def forget(self, generation: Generation, step: int) -> None:
        """Free the slot of a snapshot."""
        mine = [
            index
            for index, held in enumerate(self.held)
            if held is not None and held.is_of(generation, step)
        ]
        self._empty(mine, "it is no longer needed")

    def tear(self, why: str, step: int | None = None) -> None:
        """End the streams of snapshots that are not complete, because nothing more of them will
        come.

        Args:
            step: the last step for which this holds; None: all.
        """
        torn = [
            index
            for index, held in enumerate(self.held)
            if held is not None
            and is_torn(held.stream)
            and (step is None or held.snapshot.step <= step)
        ]
        self._empty(torn, why)

    def read(self, slot: int) -> tuple[NDArray[np.uint8], Callable[[], None]]:
        """Return the bytes of a slot, which is not refilled until the returned function is
        called."""
        assert self.arena_layout is not None
        readers = self._readers  # new memory comes with a new counter
        readers[slot] += 1

        def end() -> None:
            readers[slot] -= 1
            self._move_in()

        return self.arena_layout.view(slot), end

    def status(self) -> dict[str, Any]:
        """Return the state of the memory as plain data."""
        return {
            "rank": self.rank,
            "generation": self.generation.id,
            "alive": self.notify is not None,
            "slot_bytes": self.arena_layout.slot_bytes if self.arena_layout else 0,
            "slots": [{"state": slot.state.value, "step": slot.step} for slot in self.slots],
        }

    def _forget_all(self) -> list[RankSnapshot]:
        lost = [held.snapshot for held in self.whole() if held.state is SlotState.WAITING]
        self._empty(range(len(self.held)), "its trainer has registered other memory")
        return lost

    def _empty(self, slots: Iterable[int], why: str) -> None:
        for slot in slots:
            held, self.held[slot] = self.held[slot], None
            if held is not None and held.stream is not None:
                held.stream.end(why)

    def _move_in(self) -> None:
        if self._next is not None and not any(self._readers.values()):
            new, self._next = self._next, None
            self.clear()
            self._move(new)

    def _move(self, new: ArenaLayout) -> None:
        self.arena_layout, self.held = new, [None] * new.slots
        self.is_contested = False
