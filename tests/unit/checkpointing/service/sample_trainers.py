"""What the tests of the service's parts are made of."""

from __future__ import annotations

import os
from typing import Any, Self

from checkpointing.service.registry.rank_slots import ArenaLayout
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout
from checkpointing.staging.arena import Arena

FIRST, SECOND = Generation("aaaaaaaa", 2), Generation("bbbbbbbb", 2)
SLOT = 4096
LAYOUT = SnapshotLayout("digest", (SlotBox("model/w", "float32", (16,), (0,), (8,), 0),))


def snapshot(
    rank: int = 0, step: int = 1, slot: int = 0, generation: Generation = FIRST
) -> RankSnapshot:
    return RankSnapshot(generation, rank, step, slot, LAYOUT)


class Trainer:
    """A trainer that is registered, with three slots."""

    def __init__(
        self,
        registry: SnapshotRegistry,
        rank: int = 0,
        generation: Generation = FIRST,
        *,
        connection: int = 0,
        slots: int = 3,
        ranks: frozenset[int] = frozenset([0, 1]),
    ) -> None:
        self.registry, self.rank, self.generation = registry, rank, generation
        self.heard: list[dict[str, Any]] = []
        self.seated = registry.join(rank, ranks, generation, self.notify, connection)
        self.arena = Arena.create(slots * SLOT)
        self.slots = slots

    def register_arena(self) -> Self:
        self.registry.register_arena(self.rank, self.notify, self.arena_layout())
        return self

    def arena_layout(self) -> ArenaLayout:
        """As the service gets it: another descriptor of the same memory."""
        return ArenaLayout(Arena.attach(os.dup(self.arena.fd)), self.slots, SLOT)

    def notify(self, message: dict[str, Any]) -> None:
        self.heard.append(message)

    def claim(self, step: int) -> int | None:
        return self.registry.claim(self.rank, self.notify, step)

    def put(self, step: int, slot: int) -> None:
        self.registry.put(self.rank, self.notify, snapshot(self.rank, step, slot, self.generation))

    def save(self, step: int) -> int | None:
        slot = self.claim(step)
        if slot is not None:
            self.put(step, slot)
        return slot

    def leave(self, *, goodbye: bool = False) -> None:
        self.registry.leave(self.rank, self.notify, goodbye=goodbye)

    def kinds(self, kind: str) -> list[int]:
        return [message["step"] for message in self.heard if message["kind"] == kind]
