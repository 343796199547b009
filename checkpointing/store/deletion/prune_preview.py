"""What a prune would remove, and how much space that would free. Nothing is changed, and only
manifests and tables are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from checkpointing.format.object_keys import SaveId
from checkpointing.retention import KeepPolicy
from checkpointing.store.deletion.checkpoint_prune import PruneChoice, choose_removals
from checkpointing.store.inspection.integrity_check import IntegrityProblem, verify
from checkpointing.store.inspection.space_usage import (
    ChunkReferences,
    FreedSpace,
    ItemOfSave,
    freed,
    measure,
    per_checkpoint,
)
from checkpointing.store.store import Store


@dataclass(frozen=True)
class PrunePlan:
    """The choice for every checkpoint of a run."""

    choices: Sequence[PruneChoice]
    """Newest first."""
    alone: Mapping[SaveId, int]
    """Bytes that removing or reducing only this checkpoint frees."""
    freed: FreedSpace
    """What the whole prune frees."""
    problems: Mapping[SaveId, str]
    """Checkpoints, of any run, that cannot be read."""


def sound_choices(
    store: Store,
    run: str,
    policies: Sequence[KeepPolicy],
    on_damaged: Callable[[PruneChoice, IntegrityProblem], None] = lambda choice, problem: None,
) -> tuple[list[PruneChoice], dict[str, str]]:
    """Return the choices for undamaged checkpoints, and by their ids the damaged ones, which are
    neither counted nor removed: otherwise the last good one might be removed because a damaged one
    is newer. Only checkpoints that stay are checked.

    Raises:
        DamagedError, FormatError: a checkpoint mark cannot be read.
        StoreError: the store is out of reach.
    """
    damaged: dict[str, str] = {}
    sound: set[str] = set()
    while True:
        choices = choose_removals(store, run, policies, frozenset(damaged))
        unseen = [c for c in choices if not c.decision.goes and c.id not in sound]
        if not unseen:
            return choices, damaged
        for choice in unseen:
            if problems := verify(store, choice.found, "quick"):
                damaged[choice.id] = str(problems[0])
                on_damaged(choice, problems[0])
            else:
                sound.add(choice.id)


def plan_prune(
    store: Store,
    choices: Sequence[PruneChoice],
    on_checkpoint: Callable[[int], None] | None = None,
) -> PrunePlan:
    """Read the references of all checkpoints of the store, and compute the space that would be
    freed.

    Args:
        on_checkpoint: called with 1 after each checkpoint of the store.

    Raises:
        StoreError: the store is out of reach.
    """
    measured = measure(store, on_checkpoint)
    by_save = {choice.found.stored.save: choice for choice in choices}
    costs = {usage.save: usage.cost.alone for usage in per_checkpoint(measured.refs)}
    return PrunePlan(
        choices,
        {
            save: _alone(measured.refs, choice, costs.get(save, 0))
            for save, choice in by_save.items()
            if is_changed(choice)
        },
        freed(measured.refs, lambda owner: is_removed(owner, by_save.get(owner.save))),
        measured.problems,
    )


def is_changed(choice: PruneChoice) -> bool:
    """Return whether the checkpoint is removed, or loses items."""
    return choice.decision.goes or bool(choice.drops)


def is_removed(owner: ItemOfSave, choice: PruneChoice | None) -> bool:
    """Return whether this item of this checkpoint is removed."""
    return choice is not None and (choice.decision.goes or owner.item in choice.drops)


def _alone(refs: ChunkReferences, choice: PruneChoice, whole: int) -> int:
    """Return the bytes that would be freed if this choice were the only one."""
    if choice.decision.goes:
        return whole
    save = choice.found.stored.save
    return freed(refs, lambda owner: owner.save == save and is_removed(owner, choice)).bytes
