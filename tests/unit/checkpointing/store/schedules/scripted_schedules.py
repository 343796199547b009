"""Schedules that are written down step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from checkpointing.format.object_keys import SaveId
from checkpointing.retention import Last
from checkpointing.store.catalog import committed
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.deletion.pack_sweep import sweep
from checkpointing.store.sessions.run_takeover import take_over
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.saves import Values
from tests.unit.checkpointing.store.schedules.actors import Facts
from tests.unit.checkpointing.store.schedules.schedule_invariants import judge
from tests.unit.checkpointing.store.schedules.scheduler import Actor
from tests.unit.checkpointing.store.schedules.store_model import Model

V: Values = {"model/w": 1, "optim/m": 2}  # contents without a chunk in common
W: Values = {"model/w": 3, "optim/m": 4}
U: Values = {"model/w": 5, "optim/m": 6}


@dataclass
class Script:
    """A model whose actors go as far as they are told."""

    model: Model = field(default_factory=lambda: Model(0))
    _names: int = 0

    def actor(self, body: Callable[[Store], object]) -> Actor:
        """An actor that waits before its first operation."""
        self._names += 1
        actor = self.model.add(f"actor{self._names}", lambda store, facts: _run(body, store))
        self.model.scheduler.start()
        return actor

    def saver(self, run: str, step: int, values: Values) -> Actor:
        return self.actor(partial(_save, facts=self.model.facts, run=run, step=step, values=values))

    def sweeper(self) -> Actor:
        return self.actor(lambda store: sweep(store, grace_s=0))

    def pruner(self, run: str, keep: int = 1) -> Actor:
        return self.actor(lambda store: prune(store, run, [Last(keep)], grace_s=0))

    def taker(self, run: str) -> Actor:
        return self.actor(lambda store: take_over(store, run))

    def up_to(self, actor: Actor, *operations: str) -> Actor:
        """Let an actor go on until it has met these operations one after the other; it waits before
        the last one."""
        for number, operation in enumerate(operations):
            if number:
                self.model.scheduler.step(actor)
            while not actor.ended and operation not in actor.next:
                self.model.scheduler.step(actor)
            assert not actor.ended, f"{actor.name} ended before {operation!r}: {actor.error!r}"
        return actor

    def finish(self, *actors: Actor) -> None:
        """Let actors go on to their ends."""
        for actor in actors:
            while not actor.ended:
                self.model.scheduler.step(actor)

    def kill(self, actor: Actor) -> None:
        self.model.scheduler.kill(actor)

    def freeze(self, actor: Actor, seconds: float, *, unseen: bool = False) -> None:
        """Stop an actor for some time of the storage's, and maybe its own clock too; everybody else
        renews his leases."""
        actor.frozen = True
        self.model.sleep(seconds, unseen=unseen)
        actor.frozen = False

    def ids(self, run: str) -> set[str]:
        """What checkpoints of a run there are."""
        return {f.stored.save.id for f in committed(self.model.store(), run)[0]}


@contextmanager
def script() -> Iterator[Script]:
    """A model; when its script is over, everything must be as it should."""
    made = Script()
    with made.model.in_force():
        yield made
        assert all(actor.ended for actor in made.model.scheduler.actors), "somebody is not done"
    wrong = judge(made.model, keep=1)
    assert not wrong, wrong


def _run(body: Callable[[Store], object], store: Callable[[], Store]) -> None:
    body(store())


def _save(store: Store, facts: Facts, run: str, step: int, values: Values) -> None:
    with Session(store, run) as session:
        facts.begun[SaveId(run, step, session.id)] = values
        facts.committed.append(saves.save(session, [RunChunkIndex(store, run)], step, values))
