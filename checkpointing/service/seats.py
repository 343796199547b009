"""A rank's place in the service: its shared memory and the snapshots in it. Not thread-safe: the
service's lock guards it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from checkpointing.arena import Arena
from checkpointing.service.slots import Slot, State, choose
from checkpointing.service.snapshots import Generation, Snapshot

Notify = Callable[[dict[str, Any]], None]  # tells a trainer something; must not block for long


@dataclass
class Seat:
    """One rank's, whoever sits in it: when its trainer has died, the next generation's finds here
    what it left."""

    rank: int
    generation: Generation  # of the trainer that sits here, or sat here last
    notify: Notify | None = None  # None: nobody sits here
    arena: Arena | None = None
    slot_bytes: int = 0
    slots: list[Slot] = field(default_factory=list)
    snapshots: list[Snapshot | None] = field(default_factory=list)
    reached: int = -1  # the newest step that its trainer has staged or skipped

    def furnish(self, arena: Arena, slots: int, slot_bytes: int) -> None:
        """Take this arena from now on; what was in the one before is forgotten."""
        self.clear()
        self.arena, self.slot_bytes = arena, slot_bytes
        self.slots, self.snapshots = [Slot()] * slots, [None] * slots

    def clear(self) -> None:
        """Give the memory back."""
        if self.arena is not None:
            self.arena.close()
        self.arena, self.slots, self.snapshots = None, [], []

    def claim(self) -> tuple[int | None, Snapshot | None]:
        """A slot that may be filled now, and the waiting snapshot that has to go for it."""
        slot = choose(self.slots)
        if slot is None:
            return None, None
        dropped = self.snapshots[slot] if self.slots[slot].state is State.WAITING else None
        self.slots[slot], self.snapshots[slot] = Slot(), None
        return slot, dropped

    def put(self, snapshot: Snapshot) -> None:
        """A slot that was claimed holds this now."""
        self.slots[snapshot.slot] = Slot(State.WAITING, snapshot.step)
        self.snapshots[snapshot.slot] = snapshot
        self.reached = max(self.reached, snapshot.step)

    def held(self) -> Iterator[tuple[Snapshot, State]]:
        """The whole snapshots here."""
        for snapshot, slot in zip(self.snapshots, self.slots, strict=True):
            if snapshot is not None:
                yield snapshot, slot.state

    def find(self, generation: Generation, step: int) -> Snapshot | None:
        return next(
            (s for s, _ in self.held() if s.generation == generation and s.step == step), None
        )

    def waiting(self, generation: Generation) -> list[int]:
        """Steps of whole snapshots that are not on their way yet."""
        return [
            s.step
            for s, state in self.held()
            if s.generation == generation and state is State.WAITING
        ]

    def set_state(self, generation: Generation, step: int, state: State) -> None:
        for index, snapshot in enumerate(self.snapshots):
            if snapshot and snapshot.generation == generation and snapshot.step == step:
                self.slots[index] = replace(self.slots[index], state=state)

    def forget(self, generation: Generation, step: int) -> None:
        """Its slot is free."""
        for index, snapshot in enumerate(self.snapshots):
            if snapshot and snapshot.generation == generation and snapshot.step == step:
                self.slots[index], self.snapshots[index] = Slot(), None

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "rank": self.rank,
            "generation": self.generation.id,
            "alive": self.notify is not None,
            "slot_bytes": self.slot_bytes,
            "slots": [{"state": slot.state.value, "step": slot.step} for slot in self.slots],
        }
