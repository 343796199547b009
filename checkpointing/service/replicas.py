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

from checkpointing import hostmemory
from checkpointing.arena import Arena
from checkpointing.errors import ServiceError, StageError
from checkpointing.service.peering import Node, choose_slot, newest_complete
from checkpointing.service.seats import Furniture
from checkpointing.service.snapshots import Generation, Snapshot
from checkpointing.slots import PAGE, round_up

logger = logging.getLogger("checkpointing")

SLOTS = 2


@dataclass(frozen=True)
class Origin:
    """A node of a generation that replicates to this one."""

    generation: Generation
    node: Node


@dataclass
class Lodger:
    """One rank's replicas."""

    furniture: Furniture
    whole: list[Snapshot | None] = field(default_factory=lambda: [None] * SLOTS)
    readers: int = 0

    @property
    def steps(self) -> tuple[int | None, int | None]:
        first, second = (one.step if one is not None else None for one in self.whole)
        return first, second

    @property
    def snapshots(self) -> list[Snapshot]:
        """Oldest first."""
        return sorted((one for one in self.whole if one is not None), key=lambda one: one.step)


@dataclass(frozen=True, eq=False)
class Filling:
    """A replica that is coming."""

    origin: Origin
    snapshot: Snapshot
    lodger: Lodger


class Replicas:
    """Thread-safe. What is in the arguments comes from a service that has proved itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._making = threading.Lock()  # of memory: what one takes is not free for the next
        self._lodgers: dict[tuple[Origin, int], Lodger] = {}  # by origin and rank
        self._filling: dict[tuple[Origin, int], Filling] = {}
        self._durable: dict[Generation, int] = {}
        self.received = self.refused = 0  # replicas

    def begin(self, origin: Origin, snapshot: Snapshot) -> Filling | None:
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
            filling = Filling(origin, replace(snapshot, slot=slot), lodger)
            self._filling[key] = filling
            return filling

    def write(self, filling: Filling, at: int, data: memoryview) -> None:
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

    def end(self, filling: Filling) -> None:
        """It is whole. Raises as `write`."""
        with self._lock:
            self._check(filling)
            del self._filling[filling.origin, filling.snapshot.rank]
            filling.lodger.whole[filling.snapshot.slot] = filling.snapshot
            self.received += 1

    def abort(self, filling: Filling) -> None:
        """Nothing more comes of it."""
        key = (filling.origin, filling.snapshot.rank)
        with self._lock:
            if self._filling.get(key) is filling:
                del self._filling[key]

    def settled(self, generation: Generation, step: int) -> None:
        """A step is durable: the replicas of it, and of those before, need not be written."""
        with self._lock:
            self._durable[generation] = max(step, self._durable.get(generation, -1))

    def whole(self) -> list[Snapshot]:
        """All that are here."""
        with self._lock:
            return [one for lodger in self._lodgers.values() for one in lodger.snapshots]

    @contextmanager
    def reading(
        self, generation: Generation, rank: int, step: int
    ) -> Iterator[tuple[Snapshot, NDArray[np.uint8]] | None]:
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

    def origins(self) -> set[Origin]:
        with self._lock:
            return {origin for origin, _ in self._lodgers}

    def unsaved(self, origin: Origin) -> dict[int, list[int]]:
        """Steps that are not known to be durable, by rank, newest last."""
        with self._lock:
            durable = self._durable.get(origin.generation, -1)
            found = {
                rank: [one.step for one in lodger.snapshots if one.step > durable]
                for (of, rank), lodger in self._lodgers.items()
                if of == origin
            }
            return {rank: steps for rank, steps in found.items() if steps}

    def take(self, origin: Origin) -> list[tuple[list[Snapshot], Furniture]]:
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

    def forget(self, origins: Iterable[Origin]) -> None:
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

    def _has_place(self, key: tuple[Origin, int], snapshot: Snapshot) -> bool:
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

    def _furnish(self, key: tuple[Origin, int], snapshot: Snapshot) -> None:
        """Without the lock, for it takes a while."""
        origin, rank = key
        slot_bytes = max(round_up(snapshot.layout.end, PAGE), PAGE)
        what = f"replicas of rank {rank} of node {origin.node.name}"
        try:
            with self._making:
                arena = take_memory(slot_bytes, SLOTS, what)
        except ServiceError:
            with self._lock:
                self.refused += 1
            raise
        with self._lock:
            self._lodgers[key] = Lodger(Furniture(arena, SLOTS, slot_bytes))

    # --- under the lock

    def _check(self, filling: Filling) -> None:
        if self._filling.get((filling.origin, filling.snapshot.rank)) is not filling:
            raise ServiceError(f"the replica of rank {filling.snapshot.rank} was given up")

    def _complete(self, origin: Origin) -> int | None:
        held = {
            rank: frozenset(one.step for one in lodger.snapshots)
            for (of, rank), lodger in self._lodgers.items()
            if of == origin
        }
        return newest_complete(held, frozenset(origin.node.ranks))

    def _find(self, generation: Generation, rank: int, step: int) -> tuple[Lodger, Snapshot] | None:
        for (origin, of), lodger in self._lodgers.items():
            if (origin.generation, of) != (generation, rank):
                continue
            for one in lodger.snapshots:
                if one.step == step:
                    return lodger, one
        return None


def take_memory(slot_bytes: int, slots: int, what: str) -> Arena:
    """Memory that is there.

    Args:
        what: it is for.

    Raises:
        ServiceError: there is not enough.
    """
    needed, free = hostmemory.need(slot_bytes, slots), hostmemory.available()
    if needed > free.bytes:
        raise ServiceError(
            f"no room for {what}: {hostmemory.gib(needed)} are needed, "
            f"{hostmemory.gib(free.bytes)} are free ({free.bound}); use fewer slots, or replicas=0"
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
    logger.info("%s: %s of memory are taken", what, hostmemory.gib(needed))
    return arena
