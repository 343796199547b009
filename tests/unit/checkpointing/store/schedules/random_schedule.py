"""One random schedule of the model: who takes part, who goes next, who freezes and who dies."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

from checkpointing.store.sessions.session import TTL_S
from checkpointing.store.store import Store
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.schedules import actors, maintenance_actors
from tests.unit.checkpointing.store.schedules.model_storage import ModelStorage, World
from tests.unit.checkpointing.store.schedules.scheduler import Actor, Scheduler
from tests.unit.checkpointing.store.schedules.store_model import Body, Model

RUNS = ("a", "b")
_KINDS = ["saver", "saver", "pruner", "pruner", "reducer", "sweeper", "pinner", "reader"]
_KINDS += ["compactor", "flattener", "repairer", "taker", "taker"]
_HARMED = 0.3  # of all worlds have damage in them
_CRITICAL = (  # operations before which to freeze tells most
    "create runs/",
    "put packs/",
    "list runs/",
    "list tombs/",
    "get tombs/",
    "list leases/",
    "get leases/",
    "get_range runs/",
    "delete packs/",
    "delete runs/",
    "delete tombs/",
    "delete leases/",
    "replace leases/",
    "replace runs/",
)


@dataclass
class _Fate:
    """What happens to one actor on its way, once."""

    before: str  # an operation that begins so
    after: int  # how many of those go by first
    steps: int  # of others, until it goes on; enough for them to end if many
    sleep_s: float  # virtual time that goes by meanwhile
    dies: bool
    unseen: bool  # its own clock stands still meanwhile


def explore(seed: int) -> Model:
    """Play one schedule to its end."""
    rng, model = random.Random(seed), Model(seed)
    with model.in_force():
        _populate(model, rng)
        kinds = ["saver", rng.choice(("saver", "saver", "taker")), "pruner", "pruner"]
        kinds += rng.choices(_KINDS, k=rng.randint(0, 2))
        for number, kind in enumerate(kinds):
            model.add(f"{kind}{number}", _body(model, f"{kind}{number}", kind, rng))
        fates = {a.name: _fate(rng) for a in model.scheduler.actors if rng.random() < 0.5}
        _play(model, rng, fates)
    return model


def _populate(model: Model, rng: random.Random) -> None:
    """The checkpoints that are there when the actors come."""
    model.facts.options = actors.options(rng)
    for run in RUNS[: rng.randint(1, 2)]:
        values, by_step = actors.fresh(rng), {}
        for step in range(1, rng.randint(2, 5)):
            by_step[step] = values = actors.change(values, rng)
        for made in saves.save_all(
            model.store(), run, by_step, ranks=rng.randint(1, 2), options=model.facts.options
        ):
            model.facts.begun[made] = by_step[made.step]
            model.facts.committed.append(made)
    if rng.random() < _HARMED:
        copy = World(objects=dict(model.world.objects))
        mirror = Store.at(ModelStorage(copy, Scheduler()))
        maintenance_actors.harm(model.world, model.facts, mirror, rng)


def _body(model: Model, name: str, kind: str, rng: random.Random) -> Body:
    run = RUNS[rng.random() < 0.25]  # mostly the same one, so that they meet
    seed, first = rng.randrange(1 << 30), rng.randint(3, 8)
    steps = range(first, first + rng.randint(1, 4))

    def slept() -> bool:
        return name in model.slept

    match kind:
        case "saver":
            return partial(actors.saver, run=run, steps=steps, seed=seed, ranks=rng.randint(1, 2))
        case "taker":
            return partial(actors.taker, run=run, steps=steps, seed=seed)
        case "pruner" | "reducer":
            return partial(actors.pruner, run=run, reduces=kind == "reducer")
        case "sweeper":
            return actors.sweeper
        case "pinner":
            return partial(actors.pinner, run=run, seed=seed)
        case "compactor":
            return partial(maintenance_actors.compactor, run=run, seed=seed, slept=slept)
        case "flattener":
            return partial(maintenance_actors.flattener, run=run, seed=seed, slept=slept)
        case "repairer":
            return partial(maintenance_actors.repairer, run=run, slept=slept)
        case _:
            return partial(actors.reader, run=run, seed=seed, slept=slept)


def _fate(rng: random.Random) -> _Fate:
    at_any = rng.random() < 0.6
    return _Fate(
        before="" if at_any else rng.choice(_CRITICAL),
        after=rng.randint(1, 50) if at_any else int(rng.expovariate(0.7)),
        steps=rng.choice((50, 200, 10_000, 10_000)),
        sleep_s=rng.choice((0.0, 0.0, 2 * TTL_S)),
        dies=rng.random() < 0.2,
        unseen=rng.random() < 0.5,
    )


def _play(model: Model, rng: random.Random, fates: dict[str, _Fate]) -> None:
    scheduler = model.scheduler
    scheduler.start()
    patience: dict[str, int] = {}  # of those who are frozen: steps of others to go
    current: Actor | None = None
    stay = rng.choice((0.0, 0.8, 0.95, 0.99))
    while alive := [a for a in scheduler.actors if not a.ended]:
        awake = [a for a in alive if not a.frozen]
        for actor in [a for a in alive if a.frozen]:
            patience[actor.name] -= 1
            if patience[actor.name] <= 0 or not awake:
                scheduler.log.append(f"{actor.name}: goes on")
                actor.frozen = False
        if not awake:
            continue
        if current not in awake or rng.random() > stay:
            current = rng.choice(awake)
        assert current is not None
        fate = fates.get(current.name)
        if fate is not None and current.next.startswith(fate.before):
            fate.after -= 1
            if fate.after < 0:
                del fates[current.name]
                patience[current.name] = fate.steps
                _meet(model, current, fate)
                continue
        scheduler.step(current)


def _meet(model: Model, actor: Actor, fate: _Fate) -> None:
    if fate.dies:
        model.scheduler.kill(actor)
        if fate.sleep_s:
            model.sleep(fate.sleep_s)
        return
    model.scheduler.log.append(
        f"{actor.name}: FREEZES before {actor.next}, for {fate.sleep_s:.0f} s"
    )
    actor.frozen = True
    if fate.sleep_s:
        model.sleep(fate.sleep_s, unseen=fate.unseen)
