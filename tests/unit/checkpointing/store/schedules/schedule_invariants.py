"""What must hold after any schedule of the model."""

from __future__ import annotations

from checkpointing.errors import CheckpointError
from checkpointing.format import object_keys
from checkpointing.format.store_records import load_deletion_mark
from checkpointing.store import catalog
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.manifest_removal import MARKED_S
from checkpointing.store.deletion.pack_sweep import FENCED_S, sweep
from checkpointing.store.sessions.session import TTL_S
from checkpointing.store.store import Store
from tests.unit.checkpointing.store import saves
from tests.unit.checkpointing.store.schedules import maintenance_actors
from tests.unit.checkpointing.store.schedules.actors import KEEP
from tests.unit.checkpointing.store.schedules.store_model import Model


def judge(model: Model, keep: int = KEEP) -> list[str]:
    """What is wrong, nothing if all promises were kept. Sweeps the world.

    Args:
        keep: how many of the newest of each run no prune removes.
    """
    with model.in_force():
        wrong = [*model.facts.broken, *_errors(model)]
        wrong += [f"changed: {key}" for key in model.world.changed]
        wrong += _interleaved(model) + _unmended(model)
        wrong += [f"before the sweeps: {text}" for text in _losses(model, keep)]
        model.sleep(2 * TTL_S)
        for _ in range(2):
            sweep(model.store(), grace_s=0)
        wrong += [f"after the sweeps: {text}" for text in _losses(model, keep)]
        wrong += [f"left: {key}" for key in _leaks(model, late=False)]
        model.sleep(FENCED_S + 1)
        sweep(model.store(), grace_s=0)
        wrong += [f"left after a week: {key}" for key in _leaks(model, late=True)]
    return wrong


def _interleaved(model: Model) -> list[str]:
    """Checkpoints that were made by those whose run had been taken over, of which there was nothing
    when it was."""
    wrong, facts = [], model.facts
    for run, owner, before in facts.taken:
        for key, is_checkpoint in model.world.made[before:]:
            parsed = object_keys.parse_manifest(key) if is_checkpoint else None
            if parsed is None or parsed[0].run != run or parsed[1] != 0:
                continue
            if (key, True) in model.world.made[:before]:  # as it was found, and pruned since
                continue
            if facts.goes_by.get(parsed[0].session, owner) < owner:
                wrong.append(f"{key} was committed after the run was taken over by {owner}")
    return wrong


def _unmended(model: Model) -> list[str]:
    """Repair what was damaged, as a person would in the end; what could not be."""
    if model.facts.mirror is None:
        return []
    wrong, store = [], model.store()
    model.sleep(MARKED_S + 1)  # while what died had condemned a checkpoint nobody can hold it
    sweep(store, grace_s=0)
    for save in maintenance_actors.to_repair(store, model.facts, None):
        try:
            maintenance_actors.mend(store, model.facts, save)
        except (CheckpointError, FileNotFoundError) as error:
            wrong.append(f"{save} cannot be repaired: {error}")
    return wrong


def _errors(model: Model) -> list[str]:
    return [f"{a.name}: {a.error!r}" for a in model.scheduler.actors if a.error is not None]


def _losses(model: Model, keep: int) -> list[str]:
    store, facts = model.store(), model.facts
    wrong = saves.problems(store)
    there = {f.stored.save: f for f in catalog.committed(store)[0]}
    for save, found in there.items():
        wrong += [] if wrong else _differs(store, found, facts.begun.get(save))
    for save in facts.pinned:
        if save not in there:
            wrong.append(f"{save.id} of {save.run} was pinned and is gone")
        elif there[save].document.header.dropped and save not in facts.partial:
            wrong.append(f"{save.id} of {save.run} was pinned and has lost items")
    # who died may have committed without being able to say so
    untold = {s for s in facts.begun if any(a.killed for a in model.scheduler.actors)}
    for save in facts.committed:
        after = {s for s in untold.union(facts.committed) if s.run == save.run}
        if sum(s.step >= save.step for s in after) <= keep and save not in there:
            wrong.append(f"{save.id} of {save.run} is gone, though among the {keep} newest")
    return wrong


def _differs(store: Store, found: catalog.CatalogEntry, values: saves.Values | None) -> list[str]:
    if values is None:
        return [f"{found.stored.key}: nobody has begun it"]
    checkpoint = Checkpoint(store, found.stored)
    want = saves.expected(values)
    kept = {k: v for k, v in want.items() if k.partition("/")[0] in checkpoint.items}
    if saves.contents(checkpoint) != kept:
        return [f"{found.stored.key}: its content is not what was saved"]
    return []


def _leaks(model: Model, *, late: bool) -> list[str]:
    """Objects that nothing needs any more."""
    store = model.store()
    found = catalog.committed(store)[0]
    needed = {one.stored.key for one in found} | {object_keys.STORE}
    needed |= {object_keys.pack_key(pack) for one in found for pack in one.document.packs()}
    left = [entry.key for entry in store.storage.list("") if entry.key not in needed]
    left = [key for key in left if "/marks/" not in key and "/owners/" not in key]
    return left if late else [key for key in left if not _waits(store, key)]


def _waits(store: Store, key: str) -> bool:
    """Fences and abandoned saves stay for a week, tombs of manifests for a day."""
    if key.startswith(object_keys.DELETION_MARKS):
        return not load_deletion_mark(store.storage.get(key), key).packs
    if key.startswith(object_keys.LEASES):
        return not key.endswith(".lease")
    stored = [s for s in store.manifests() if s.key == key]
    return any(store.document(s).kind != "hpckit-manifest" for s in stored)
