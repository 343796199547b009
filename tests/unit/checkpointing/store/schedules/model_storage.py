"""A model of a storage: objects in memory, a virtual clock, and a scheduler that is asked before
every operation. Listings and deletions of many are not atomic, as nowhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from checkpointing.errors import DamagedError
from checkpointing.storage import Buffer, ObjectInfo
from checkpointing.storage.key_rules import check_key, check_prefix, check_range
from tests.unit.checkpointing.store.schedules.scheduler import Actor, Scheduler

TICK_S = 0.01  # by which each operation moves the clock
_RENEWS = 0.05  # how often, between two operations, the time has come to renew a lease


@dataclass
class World:
    """The objects that all actors share."""

    objects: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    owners: dict[str, Actor | None] = field(default_factory=dict)  # of leases: who wrote it last
    now: float = 1e9  # Unix time, seconds
    made: list[tuple[str, bool]] = field(default_factory=list)  # keys; whether it is a checkpoint
    changed: list[str] = field(default_factory=list)  # keys of immutable objects that changed
    lock: threading.Lock = field(default_factory=threading.Lock)

    def entries(self, prefix: str) -> list[ObjectInfo]:
        """The objects under a prefix, by key."""
        with self.lock:
            found = sorted(item for item in self.objects.items() if item[0].startswith(prefix))
        return [ObjectInfo(key, len(data), modified) for key, (data, modified) in found]


class ModelStorage:
    """One actor's way to the world; without an actor, nobody is asked. A `Storage`."""

    def __init__(self, world: World, scheduler: Scheduler, actor: Actor | None = None) -> None:
        self.world, self._scheduler, self._actor = world, scheduler, actor
        self.renews: list[Callable[[], None]] = []  # what its sessions do from time to time

    @property
    def url(self) -> str:
        return "model://world"

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        self._ask("put", key)
        self._write(key, b"".join(parts))

    def create(self, key: str, data: bytes) -> bool:
        self._ask("create", key)
        with self.world.lock:
            held = self.world.objects.get(check_key(key))
        if held is None:
            self._write(key, bytes(data))
        return held is None or held[0] == data

    def replace(self, key: str, data: bytes) -> None:
        self._ask("replace", key)
        self._write(key, bytes(data), may_change=True)

    def get(self, key: str) -> bytes:
        self._ask("get", key)
        return self._read(key)

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        check_range(start, length)
        self._ask("get_range", key)
        data = self._read(key)
        if start + length > len(data):
            raise DamagedError(f"{key}: bytes to {start + length} wanted of {len(data)}")
        return memoryview(data)[start : start + length]

    def list(self, prefix: str) -> list[ObjectInfo]:
        check_prefix(prefix)
        self._ask("list", prefix)
        found = self.world.entries(prefix)
        if self._actor is None or len(found) < 2:
            return found
        border = found[self._actor.random.randrange(1, len(found))].key
        self._ask("list on", prefix)
        first = [entry for entry in found if entry.key < border]
        return first + [entry for entry in self.world.entries(prefix) if entry.key >= border]

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._ask("delete", key)
            with self.world.lock:
                self.world.objects.pop(check_key(key), None)

    def close(self) -> None:
        """Nothing to release."""

    def _ask(self, verb: str, key: str) -> None:
        if self._actor is not None:
            renews = [] if key.startswith("leases/") else list(self.renews)
            for renew in renews:
                if self._actor.random.random() < _RENEWS:
                    renew()
            self._scheduler.operation(self._actor, f"{verb} {key}")
        self.world.now += TICK_S

    def _read(self, key: str) -> bytes:
        with self.world.lock:
            held = self.world.objects.get(check_key(key))
        if held is None:
            raise FileNotFoundError(f"read {key}: no such object")
        return held[0]

    def _write(self, key: str, data: bytes, *, may_change: bool = False) -> None:
        with self.world.lock:
            held = self.world.objects.get(check_key(key))
            if held is not None and held[0] != data and not may_change:
                self.world.changed.append(key)
            if may_change and "/marks/" not in key:
                self.world.changed.append(key)
            if held is None:
                self.world.made.append((key, b'"hpckit-manifest"' in data))
            self.world.objects[key] = (data, self.world.now)
            self.world.owners[key] = self._actor
