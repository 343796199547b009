"""Snapshots of other nodes' ranks, in memory of this service: each rank's newest whole one, and the
one before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import ServiceError, StageError
from checkpointing.service.registry.rank_slots import ArenaLayout
from checkpointing.service.replication.replication_ring import (
    RingNode,
    choose_slot,
    newest_complete,
)
from checkpointing.service.snapshots import Generation, RankSnapshot
from checkpointing.staging import host_memory
from checkpointing.staging.arena import Arena
from checkpointing.staging.slot_layout import PAGE, round_up

logger = logging.getLogger("checkpointing")

SLOTS = 2


@dataclass(frozen=True)
class ReplicaOrigin:
    """A node of a generation that replicates to this one."""

    generation: Generation
    node: RingNode


@dataclass
class RankReplicas:
    """One rank's replicas."""

    furniture: ArenaLayout
    whole: list[RankSnapshot | None] = field(default_factory=lambda: [None] * SLOTS)
    readers: int = 0

    @property
    def steps(self) -> tuple[int | None, int | None]:
        first, second = (one.step if one is not None else None for one in self.whole)
        return first, second

    @property
    def snapshots(self) -> list[RankSnapshot]:
        """Oldest first."""
        return sorted((one for one in self.whole if one is not None), key=lambda one: one.step)


@dataclass(frozen=True, eq=False)
class IncomingReplica:
    """A replica that is coming."""

    origin: ReplicaOrigin
    snapshot: RankSnapshot
    lodger: RankReplicas


class KeptReplicas:
    """Thread-safe. What is in the arguments comes from a service that has proved itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making = threading.Lock()  # of memory: what one takes is not free for the next
        self._lodgers: dict[tuple[ReplicaOrigin, int], RankReplicas] = {}  # by origin and rank
        self._filling: dict[tuple[ReplicaOrigin, int], IncomingReplica] = {}
        self._durable: dict[Generation, int] = {}
        self.received = self.refused = 0  # replicas

    def begin(self, origin: ReplicaOrigin, snapshot: RankSnapshot) -> IncomingReplica | None:
        """Make room for a replica; None if it is here. One of the same rank that was coming is
        given up.

        Raises:
            ServiceError: it is none of that node's, or there is no memory for it.
        """
        if snapshot.rank not in origin.node.ranks or snapshot.generation != origin.generation:
            raise ServiceError(f"rank {snapshot.rank} is none of node {origin.node.name}")
        key = (origin, snapshot.rank)
        if not self._has_place(key, snapshot):
            self._furnish(key, snapshot)
        with self._lock:
            lodger = self._lodgers.get(key)
            if lodger is None:
                raise ServiceError(f"the replicas of rank {snapshot.rank} have just been given up")
            if snapshot.step in lodger.steps:
                return None
            if lodger.readers:
                raise ServiceError(f"the replicas of rank {snapshot.rank} are being read")
            complete = self._complete(origin)
            slot = choose_slot(lodger.steps, complete)
            lodger.whole[slot] = None
            filling = IncomingReplica(origin, replace(snapshot, slot=slot), lodger)
            self._filling[key] = filling
            return filling

    def write(self, filling: IncomingReplica, at: int, data: memoryview) -> None:
        """Bytes of a replica, from byte `at` of its slot.

        Raises:
            ServiceError: there are too many, or it was given up for another one.
        """
        with self._lock:
            self._check(filling)
            if at + len(data) > filling.snapshot.layout.end:
                raise ServiceError(f"rank {filling.snapshot.rank} sends more than it said")
            into = filling.lodger.furniture.view(filling.snapshot.slot)
            into[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def end(self, filling: IncomingReplica) -> None:
        """It is whole. Raises as `write`."""
        with self._lock:
            self._check(filling)
            del self._filling[filling.origin, filling.snapshot.rank]
            filling.lodger.whole[filling.snapshot.slot] = filling.snapshot
            self.received += 1

    def abort(self, filling: IncomingReplica) -> None:
        """Nothing more comes of it."""
        key = (filling.origin, filling.snapshot.rank)
        with self._lock:
            if self._filling.get(key) is filling:
                del self._filling[key]

    def settled(self, generation: Generation, step: int) -> None:
        """A step is durable: the replicas of it, and of those before, need not be written."""
        with self._lock:
            self._durable[generation] = max(step, self._durable.get(generation, -1))

    def whole(self) -> list[RankSnapshot]:
        """All that are here."""
        with self._lock:
            return [one for lodger in self._lodgers.values() for one in lodger.snapshots]

    @contextmanager
    def reading(
        self, generation: Generation, rank: int, step: int
    ) -> Iterator[tuple[RankSnapshot, NDArray[np.uint8]] | None]:
        """A replica and its slot, which stays as it is while the block runs; None: not here."""
        with self._lock:
            found = self._find(generation, rank, step)
            if found is not None:
                found[0].readers += 1
        if found is None:
            yield None
            return
        lodger, snapshot = found
        try:
            yield snapshot, lodger.furniture.view(snapshot.slot)
        finally:
            with self._lock:
                lodger.readers -= 1

    def origins(self) -> set[ReplicaOrigin]:
        with self._lock:
            return {origin for origin, _ in self._lodgers}

    def unsaved(self, origin: ReplicaOrigin) -> dict[int, list[int]]:
        """Steps that are not known to be durable, by rank, newest last."""
        with self._lock:
            durable = self._durable.get(origin.generation, -1)
            found = {
                rank: [one.step for one in lodger.snapshots if one.step > durable]
                for (of, rank), lodger in self._lodgers.items()
                if of == origin
            }
            return {rank: steps for rank, steps in found.items() if steps}

    def take(self, origin: ReplicaOrigin) -> list[tuple[list[RankSnapshot], ArenaLayout]]:
        """Move out what of an origin is not durable: by rank, oldest first."""
        with self._lock:
            durable = self._durable.get(origin.generation, -1)
            taken = []
            for key in [key for key in self._lodgers if key[0] == origin]:
                lodger = self._lodgers[key]
                wanted = [one for one in lodger.snapshots if one.step > durable]
                if wanted:
                    taken.append((wanted, lodger.furniture))
                    del self._lodgers[key]
                    self._filling.pop(key, None)
            return taken

    def forget(self, origins: Iterable[ReplicaOrigin]) -> None:
        """Give their memory back; who reads from it still may."""
        gone = set(origins)
        with self._lock:
            for key in [key for key in self._lodgers if key[0] in gone]:
                self._lodgers.pop(key).furniture.arena.close()
                self._filling.pop(key, None)

    def status(self) -> list[dict[str, Any]]:
        """Plain data: what is held for each rank."""
        with self._lock:
            return [
                {
                    "node": origin.node.name,
                    "rank": rank,
                    "generation": origin.generation.id,
                    "steps": [one.step for one in lodger.snapshots],
                    "bytes": lodger.furniture.arena.size,
                }
                for (origin, rank), lodger in sorted(
                    self._lodgers.items(), key=lambda item: item[0][1]
                )
            ]

    def _has_place(self, key: tuple[ReplicaOrigin, int], snapshot: RankSnapshot) -> bool:
        """Whether there is memory for it; what is too small goes."""
        with self._lock:
            lodger = self._lodgers.get(key)
            if lodger is None:
                return False
            if lodger.furniture.slot_bytes >= snapshot.layout.end:
                return True
            del self._lodgers[key]
            lodger.furniture.arena.close()
            return False

    def _furnish(self, key: tuple[ReplicaOrigin, int], snapshot: RankSnapshot) -> None:
        """Without the lock, for it takes a while."""
        origin, rank = key
        slot_bytes = max(round_up(snapshot.layout.end, PAGE), PAGE)
        what = f"replicas of rank {rank} of node {origin.node.name}"
        try:
            with self._making:
                arena = allocate_arena(slot_bytes, SLOTS, what)
        except ServiceError:
            with self._lock:
                self.refused += 1
            raise
        with self._lock:
            self._lodgers[key] = RankReplicas(ArenaLayout(arena, SLOTS, slot_bytes))

    # --- under the lock

    def _check(self, filling: IncomingReplica) -> None:
        if self._filling.get((filling.origin, filling.snapshot.rank)) is not filling:
            raise ServiceError(f"the replica of rank {filling.snapshot.rank} was given up")

    def _complete(self, origin: ReplicaOrigin) -> int | None:
        held = {
            rank: frozenset(one.step for one in lodger.snapshots)
            for (of, rank), lodger in self._lodgers.items()
            if of == origin
        }
        return newest_complete(held, frozenset(origin.node.ranks))

    def _find(
        self, generation: Generation, rank: int, step: int
    ) -> tuple[RankReplicas, RankSnapshot] | None:
        for (origin, of), lodger in self._lodgers.items():
            if (origin.generation, of) != (generation, rank):
                continue
            for one in lodger.snapshots:
                if one.step == step:
                    return lodger, one
        return None


def allocate_arena(slot_bytes: int, slots: int, what: str) -> Arena:
    """Memory that is there.

    Args:
        what: it is for.

    Raises:
        ServiceError: there is not enough.
    """
    needed, free = host_memory.need(slot_bytes, slots), host_memory.available()
    if needed > free.bytes:
        raise ServiceError(
            f"no room for {what}: {host_memory.gib(needed)} are needed, "
            f"{host_memory.gib(free.bytes)} are free ({free.bound}); use fewer slots, or replicas=0"
        )
    try:
        arena = Arena.create(needed, "replica")
        try:
            arena.prefault(1)
        except StageError:
            arena.close()
            raise
    except StageError as error:
        raise ServiceError(f"no room for {what}: {error}") from error
    logger.info("%s: %s of memory are taken", what, host_memory.gib(needed))
    return arena
