"""The model: a storage, a clock, names and actors, all of which can be repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

from checkpointing.format import names
from checkpointing.store import leases, removal, session, tombs
from checkpointing.store.store import Store
from tests.unit.checkpointing.store.actors import Facts
from tests.unit.checkpointing.store.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.scheduler import Actor, Scheduler

Body = Callable[[Callable[[], Store], Facts], None]


@dataclass
class Model:
    """A world with its actors."""

    seed: int
    world: World = field(default_factory=World)
    scheduler: Scheduler = field(default_factory=Scheduler)
    facts: Facts = field(default_factory=Facts)
    slept: set[str] = field(default_factory=set)  # names of actors that were silent for too long

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
        rest = random.Random(self.seed)

        def rng() -> random.Random:
            actor = self.scheduler.current()
            return rest if actor is None else actor.random

        def monotonic() -> float:
            actor = self.scheduler.current()
            return self.world.now - (actor.asleep_s if actor else 0.0)

        secrets = SimpleNamespace(
            token_hex=lambda n: rng().randbytes(n).hex(), token_bytes=lambda n: rng().randbytes(n)
        )
        with (
            mock.patch.object(names, "secrets", secrets),
            mock.patch.object(tombs, "secrets", secrets),
            mock.patch.object(leases, "secrets", secrets),
            mock.patch.object(session, "time", SimpleNamespace(monotonic=monotonic)),
            mock.patch.object(removal, "time", SimpleNamespace(monotonic=monotonic)),
        ):
            yield
