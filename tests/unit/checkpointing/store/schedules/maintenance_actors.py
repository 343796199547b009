"""What looks after the checkpoints of the model: compaction, flattening, repair of damage."""

from __future__ import annotations

import random
from collections.abc import Callable

from checkpointing.errors import DamagedError, FormatError, SaveError
from checkpointing.format import object_keys
from checkpointing.format.object_keys import SaveId
from checkpointing.store import catalog
from checkpointing.store.deletion.pack_compaction import compact
from checkpointing.store.repair.base_removal import flatten
from checkpointing.store.repair.checkpoint_repair import repair
from checkpointing.store.store import Store
from tests.unit.checkpointing.store.schedules.actors import Facts
from tests.unit.checkpointing.store.schedules.model_storage import World


def compactor(
    store: Callable[[], Store], facts: Facts, run: str, seed: int, slept: Callable[[], bool]
) -> None:
    """Rewrites packs of which a part is dead, of one run or of all."""
    rng, here = random.Random(seed), store()
    try:
        compact(here, rng.choice((run, None)), threshold=rng.choice((0.0, 0.3)))
    except SaveError as error:
        facts.refused.append(str(error))
    except DamagedError as error:
        _excuse(facts, error, slept)


def flattener(
    store: Callable[[], Store], facts: Facts, run: str, seed: int, slept: Callable[[], bool]
) -> None:
    """Makes one checkpoint stand alone."""
    rng, here = random.Random(seed), store()
    found = catalog.committed(here, run)[0]
    if not found:
        return
    try:
        flatten(here, run, rng.choice(found))
    except (SaveError, FileNotFoundError) as error:
        facts.refused.append(str(error))
    except DamagedError as error:
        _excuse(facts, error, slept)


def repairer(store: Callable[[], Store], facts: Facts, run: str, slept: Callable[[], bool]) -> None:
    """Repairs all checkpoints of a run, with the copy that was made before the damage."""
    here = store()
    for save in to_repair(here, facts, run):
        try:
            mend(here, facts, save)
        except (SaveError, FileNotFoundError) as error:
            facts.refused.append(str(error))
        except DamagedError as error:
            _excuse(facts, error, slept)


def to_repair(store: Store, facts: Facts, run: str | None) -> list[SaveId]:
    """Checkpoints, whole and damaged, and those whose manifests the damage has taken."""
    found, problems = catalog.committed(store, run)
    saves = dict.fromkeys([one.stored.save for one in found] + list(problems))
    return list(saves) + [s for s in facts.gone if s not in saves and run in (None, s.run)]


def mend(store: Store, facts: Facts, save: SaveId) -> None:
    """Repair one checkpoint.

    Raises:
        FileNotFoundError: it was pruned.
        DamagedError: some of it is lost, of which the copy has all.
    """
    others = [facts.mirror] if facts.mirror is not None else []
    found, problems = catalog.committed(store, save.run)
    there = {one.stored.save: one for one in found}
    if save not in there and save not in problems and save not in facts.gone:
        raise FileNotFoundError(f"{save} is not there any more")
    done = repair(store, save.run, there.get(save, save), others)
    if done.lost:
        raise DamagedError(f"not repaired: {done.lost}")


def harm(world: World, facts: Facts, mirror: Store, rng: random.Random) -> None:
    """Damage some objects of a world, of which `mirror` is a copy."""
    facts.mirror = mirror
    keys = [key for key in sorted(world.objects) if key.endswith((".pack", ".manifest"))]
    for key in rng.sample(keys, min(len(keys), rng.randint(1, 2))):
        data, modified = world.objects[key]
        if rng.random() < 0.3:
            del world.objects[key]
            if parsed := object_keys.parse_manifest(key):
                facts.gone.append(parsed[0])
        else:
            at = rng.randrange(len(data))
            changed = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
            world.objects[key] = (changed, modified)


def _excuse(facts: Facts, error: DamagedError | FormatError, slept: Callable[[], bool]) -> None:
    """Damage is news where nothing was damaged and nobody was silent for too long."""
    if facts.mirror is None and not slept():
        facts.broken.append(f"damage without any: {error}")
    facts.refused.append(str(error))
