"""The model: a storage, a clock, names and actors, all of which can be repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from checkpointing.format import object_keys
from checkpointing.format.object_keys import SaveId
from checkpointing.store import catalog
from checkpointing.store.deletion import (
    checkpoint_prune,
    deletion_marks,
    manifest_removal,
    pack_compaction,
)
from checkpointing.store.inspection import integrity_check
from checkpointing.store.read import chunk_fetcher
from checkpointing.store.repair import base_removal, checkpoint_repair
from checkpointing.store.sessions import run_ownership, run_takeover, session, session_leases
from checkpointing.store.store import Store
from checkpointing.store.write import packer, part_writer
from tests.unit.checkpointing.store.schedules import actors
from tests.unit.checkpointing.store.schedules.actors import Facts
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Actor, Scheduler
from tests.unit.checkpointing.store.schedules.serial_executor import Serial

Body = Callable[[Callable[[], Store], Facts], None]
_NAMED = (
    object_keys,
    deletion_marks,
    session_leases,
    run_ownership,
)  # modules that take names from `secrets`
_TIMED = (session, manifest_removal)  # that look at their own clock
_THREADED = (
    packer,
    catalog,
    chunk_fetcher,
    part_writer,
    checkpoint_repair,
    integrity_check,
)  # that have threads
_HELD = (
    actors,
    pack_compaction,
    base_removal,
    checkpoint_prune,
    checkpoint_repair,
    run_takeover,
)  # that hold sessions


@dataclass
class Model:
    """A world with its actors."""

    seed: int
    world: World = field(default_factory=World)
    scheduler: Scheduler = field(default_factory=Scheduler)
    facts: Facts = field(default_factory=Facts)
    random: random.Random = field(init=False)  # of the names that nobody of the actors makes
    slept: set[str] = field(default_factory=set)  # names of actors that were silent for too long

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def store(self, actor: Actor | None = None) -> Store:
        return Store.at(ModelStorage(self.world, self.scheduler, actor), create=True)

    def add(self, name: str, body: Body) -> Actor:
        """A new actor."""
        actor = self.scheduler.add(
            name, lambda: body(lambda: self.store(actor), self.facts), self.seed
        )
        return actor

    def sleep(self, seconds: float, *, unseen: bool = False) -> None:
        """Time goes by: who is alive and not frozen renews its leases. With `unseen` the clocks of
        those who are frozen stand still too."""
        self.world.now += seconds
        self.slept |= {actor.name for actor in self.scheduler.actors if actor.frozen}
        for actor in self.scheduler.actors:
            if not actor.frozen or unseen:
                actor.asleep_s += seconds
        for key, (data, _) in list(self.world.objects.items()):
            owner = self.world.owners.get(key)
            if key.endswith(".lease") and owner and not (owner.frozen or owner.ended):
                self.world.objects[key] = (data, self.world.now)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Names and clocks come from the model meanwhile."""

        def rng() -> random.Random:
            actor = self.scheduler.current()
            return self.random if actor is None else actor.random

        def monotonic() -> float:
            actor = self.scheduler.current()
            return self.world.now - (actor.asleep_s if actor else 0.0)

        secrets = SimpleNamespace(
            token_hex=lambda n: rng().randbytes(n).hex(), token_bytes=lambda n: rng().randbytes(n)
        )
        time = SimpleNamespace(monotonic=monotonic)
        with ExitStack() as stack:
            patches: list[tuple[Iterable[Any], str, object]] = [
                (_NAMED, "secrets", secrets),
                (_TIMED, "time", time),
                (_THREADED, "ThreadPoolExecutor", Serial),
                (_HELD, "Session", _sessions(self.facts)),
            ]
            for modules, name, stand_in in patches:
                for module in modules:
                    stack.enter_context(mock.patch.object(module, name, stand_in))
            yield


def _sessions(facts: Facts) -> type[session.Session]:
    """Sessions that renew their leases now and then, between any two operations of their actors,
    and of which it is known by which owner they go."""

    class Watched(session.Session):
        def __init__(self, store: Store, *arguments: Any, **options: Any) -> None:
            super().__init__(store, *arguments, **options)
            if isinstance(store.storage, ModelStorage):
                store.storage.renews.append(self.renew)

        def begin(self, step: int) -> SaveId:
            save = super().begin(step)
            facts.goes_by[self.id] = self.store.owners[self.run]
            return save

        def close(self) -> None:
            storage = self.store.storage
            if isinstance(storage, ModelStorage) and self.renew in storage.renews:
                storage.renews.remove(self.renew)
            super().close()

    return Watched
