"""Replicas of the snapshots of other nodes' ranks, in memory of this service: of each rank the
newest whole one and the one before."""

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
)
from checkpointing.service.snapshots import Generation, RankSnapshot, newest_common_step
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
    """The replicas of one rank."""

    arena_layout: ArenaLayout
    whole: list[RankSnapshot | None] = field(default_factory=lambda: [None] * SLOTS)
    readers: int = 0

    @property
    def steps(self) -> tuple[int | None, int | None]:
        first, second = (one.step if one is not None else None for one in self.whole)
        return first, second

    @property
    def snapshots(self) -> list[RankSnapshot]:
        """Return the whole replicas, oldest first."""
        return sorted((one for one in self.whole if one is not None), key=lambda one: one.step)


@dataclass(frozen=True, eq=False)
class IncomingReplica:
    """A replica that is being received."""

    origin: ReplicaOrigin
    snapshot: RankSnapshot
    rank_replicas: RankReplicas


class KeptReplicas:
    """The replicas that this node keeps. Thread-safe. The arguments of its methods come from a
    service that has proved itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # held while memory is allocated, so that two allocations do not count the same free memory
        self._making = threading.Lock()
        self._replicas: dict[tuple[ReplicaOrigin, int], RankReplicas] = {}  # by origin and rank
        self._filling: dict[tuple[ReplicaOrigin, int], IncomingReplica] = {}
        self._durable: dict[Generation, int] = {}
        self.received = self.refused = 0  # number of replicas

    def begin(self, origin: ReplicaOrigin, snapshot: RankSnapshot) -> IncomingReplica | None:
        """Make room for a replica; None if it is already here. A replica of the same rank that was
        being received is given up.

        Raises:
            ServiceError: the snapshot does not belong to that node, or there is no memory for it.
        """
        if snapshot.rank not in origin.node.ranks or snapshot.generation != origin.generation:
            raise ServiceError(f"rank {snapshot.rank} is not a rank of node {origin.node.name}")
        key = (origin, snapshot.rank)
        if not self._has_place(key, snapshot):
            self._allocate(key, snapshot)
        with self._lock:
            rank_replicas = self._replicas.get(key)
            if rank_replicas is None:
                raise ServiceError(f"the replicas of rank {snapshot.rank} have just been given up")
            if snapshot.step in rank_replicas.steps:
                return None
            if rank_replicas.readers:
                raise ServiceError(f"the replicas of rank {snapshot.rank} are being read")
            complete = self._complete(origin)
            slot = choose_slot(rank_replicas.steps, complete)
            rank_replicas.whole[slot] = None
            filling = IncomingReplica(origin, replace(snapshot, slot=slot), rank_replicas)
            self._filling[key] = filling
            return filling

    def write(self, filling: IncomingReplica, at: int, data: memoryview) -> None:
        """Write bytes of a replica, from byte `at` of its slot.

        Raises:
            ServiceError: there are too many, or it was given up for another one.
        """
        with self._lock:
            self._check(filling)
            if at + len(data) > filling.snapshot.layout.end:
                raise ServiceError(f"rank {filling.snapshot.rank} sends more bytes than it stated")
            into = filling.rank_replicas.arena_layout.view(filling.snapshot.slot)
            into[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def end(self, filling: IncomingReplica) -> None:
        """Record that a replica is whole. Raises as `write`."""
        with self._lock:
            self._check(filling)
            del self._filling[filling.origin, filling.snapshot.rank]
            filling.rank_replicas.whole[filling.snapshot.slot] = filling.snapshot
            self.received += 1

    def abort(self, filling: IncomingReplica) -> None:
        """Discard a replica of which nothing more comes."""
        key = (filling.origin, filling.snapshot.rank)
        with self._lock:
            if self._filling.get(key) is filling:
                del self._filling[key]

    def settled(self, generation: Generation, step: int) -> None:
        """Record that a step is durable: the replicas of it, and of older steps, need not be
        written."""
        with self._lock:
            self._durable[generation] = max(step, self._durable.get(generation, -1))

    def whole(self) -> list[RankSnapshot]:
        """Return all whole replicas."""
        with self._lock:
            return [
                one for rank_replicas in self._replicas.values() for one in rank_replicas.snapshots
            ]

    @contextmanager
    def reading(
        self, generation: Generation, rank: int, step: int
    ) -> Iterator[tuple[RankSnapshot, NDArray[np.uint8]] | None]:
        """Yield a replica and its slot, which does not change while the block runs; None if it is
        not here."""
        with self._lock:
            found = self._find(generation, rank, step)
            if found is not None:
                found[0].readers += 1
        if found is None:
            yield None
            return
        rank_replicas, snapshot = found
        try:
            yield snapshot, rank_replicas.arena_layout.view(snapshot.slot)
        finally:
            with self._lock:
                rank_replicas.readers -= 1

    def origins(self) -> set[ReplicaOrigin]:
        with self._lock:
            return {origin for origin, _ in self._replicas}

    def unsaved(self, origin: ReplicaOrigin) -> dict[int, list[int]]:
        """Return the steps that are not known to be durable, by rank, newest last."""
        with self._lock:
            durable = self._durable.get(origin.generation, -1)
            found = {
                rank: [one.step for one in rank_replicas.snapshots if one.step > durable]
                for (of, rank), rank_replicas in self._replicas.items()
                if of == origin
            }
            return {rank: steps for rank, steps in found.items() if steps}

    def take(self, origin: ReplicaOrigin) -> list[tuple[list[RankSnapshot], ArenaLayout]]:
        """Remove and return the replicas of an origin that are not durable: by rank, oldest
        first."""
        with self._lock:
            durable = self._durable.get(origin.generation, -1)
            taken = []
            for key in [key for key in self._replicas if key[0] == origin]:
                rank_replicas = self._replicas[key]
                wanted = [one for one in rank_replicas.snapshots if one.step > durable]
                if wanted:
                    taken.append((wanted, rank_replicas.arena_layout))
                    del self._replicas[key]
                    self._filling.pop(key, None)
            return taken

    def forget(self, origins: Iterable[ReplicaOrigin]) -> None:
        """Free the memory of these origins; readers of it may continue."""
        gone = set(origins)
        with self._lock:
            for key in [key for key in self._replicas if key[0] in gone]:
                self._replicas.pop(key).arena_layout.arena.close()
                self._filling.pop(key, None)

    def status(self) -> list[dict[str, Any]]:
        """Return plain data: what is held for each rank."""
        with self._lock:
            return [
                {
                    "node": origin.node.name,
                    "rank": rank,
                    "generation": origin.generation.id,
                    "steps": [one.step for one in rank_replicas.snapshots],
                    "bytes": rank_replicas.arena_layout.arena.size,
                }
                for (origin, rank), rank_replicas in sorted(
                    self._replicas.items(), key=lambda item: item[0][1]
                )
            ]

    def _has_place(self, key: tuple[ReplicaOrigin, int], snapshot: RankSnapshot) -> bool:
        """Return whether the memory is large enough for a snapshot; memory that is too small is
        freed."""
        with self._lock:
            rank_replicas = self._replicas.get(key)
            if rank_replicas is None:
                return False
            if rank_replicas.arena_layout.slot_bytes >= snapshot.layout.end:
                return True
            del self._replicas[key]
            rank_replicas.arena_layout.arena.close()
            return False

    def _allocate(self, key: tuple[ReplicaOrigin, int], snapshot: RankSnapshot) -> None:
        """Allocate memory for a rank's replicas. Called without the lock, because it takes a
        while."""
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
            self._replicas[key] = RankReplicas(ArenaLayout(arena, SLOTS, slot_bytes))

    # --- under the lock

    def _check(self, filling: IncomingReplica) -> None:
        if self._filling.get((filling.origin, filling.snapshot.rank)) is not filling:
            raise ServiceError(f"the replica of rank {filling.snapshot.rank} was given up")

    def _complete(self, origin: ReplicaOrigin) -> int | None:
        held = {
            rank: frozenset(one.step for one in rank_replicas.snapshots)
            for (of, rank), rank_replicas in self._replicas.items()
            if of == origin
        }
        return newest_common_step(held, frozenset(origin.node.ranks))

    def _find(
        self, generation: Generation, rank: int, step: int
    ) -> tuple[RankReplicas, RankSnapshot] | None:
        for (origin, of), rank_replicas in self._replicas.items():
            if (origin.generation, of) != (generation, rank):
                continue
            for one in rank_replicas.snapshots:
                if one.step == step:
                    return rank_replicas, one
        return None


def allocate_arena(slot_bytes: int, slots: int, what: str) -> Arena:
    """Allocate an arena whose memory is actually available.

    Args:
        what: what the memory is for, for the error message.

    Raises:
        ServiceError: there is not enough memory.
    """
    needed, free = host_memory.need(slot_bytes, slots), host_memory.available()
    if needed > free.bytes:
        raise ServiceError(
            f"not enough memory for {what}: {host_memory.gib(needed)} are needed, "
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
        raise ServiceError(f"not enough memory for {what}: {error}") from error
    logger.info("%s: %s of memory are used", what, host_memory.gib(needed))
    return arena
