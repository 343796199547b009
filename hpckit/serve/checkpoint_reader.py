"""Reads what a run's store holds, what differs between two checkpoints, and what a prune would
remove. Nothing is written to the store, not even a lease: what is removed meanwhile is missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from checkpointing.errors import CheckpointError
from checkpointing.retention import parse_keep
from checkpointing.runs import opened
from checkpointing.store.catalog import CheckpointInfo, committed, list_checkpoints
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.prune_preview import PrunePlan, plan_prune, sound_choices
from checkpointing.store.inspection.checkpoint_diff import (
    CheckpointComparison,
    TensorDiff,
    compare,
    measured,
)
from checkpointing.store.pins_and_labels import labels_by_id, readable_marks, with_marked_metrics
from checkpointing.store.store import Store
from hpckit.config.rules.validation_and_evaluation import best_policy
from hpckit.config.spec import RunSpec
from hpckit.report.checkpoints.prune_summary import unknown_names
from hpckit.rundir.directory import RunDir, run_name, store_and_name
from hpckit.system.store_timeouts import interactive_store_options

MEASURED_BYTES = 256 << 20
"""Decoded bytes of two checkpoints up to which a page reads tensors to say by how much they differ;
beyond that it says which of them do."""
_RECORD = "hpckit.json"


class CheckpointPageError(RuntimeError):
    """Raised if a page about checkpoints cannot be made; the message says why."""


@dataclass(frozen=True)
class StoreListing:
    """The checkpoints of a run."""

    url: str
    infos: Sequence[CheckpointInfo]
    """By step; unfinished and damaged ones too."""
    labels: Mapping[str, Sequence[str]]
    """Marks by id."""
    problems: Sequence[str]


@dataclass(frozen=True)
class CheckpointDifference:
    """What differs between two checkpoints of a run."""

    a: CheckpointInfo
    b: CheckpointInfo
    comparison: CheckpointComparison
    tensors: Sequence[TensorDiff]
    is_measured: bool
    """Whether tensors were read, and their changes have numbers."""


@dataclass(frozen=True)
class RetentionPreview:
    """What a prune with some policies would remove."""

    plan: PrunePlan
    damaged: Mapping[str, str]
    """Problems by the id of checkpoints that are neither counted nor removed."""


def policies_of(spec: RunSpec) -> list[str]:
    """Return the policies by which the run itself removes checkpoints, as `--keep` has them; for
    one more, which keeps those that wait for an evaluation, it has no word."""
    keep, best = spec.checkpoint.keep, best_policy(spec.eval)
    found = [f"last={keep.last}"]
    found += [f"every={keep.every}"] if keep.every is not None else []
    found += [f"best={keep.best}"] if keep.best is not None else []
    return found + ([f"best={best.metric}:{best.mode}"] if best is not None else [])


def read_listing(run: RunDir, spec: RunSpec | None) -> StoreListing:
    """Return the checkpoints of a run.

    Raises:
        CheckpointPageError: it has none, or the store cannot be read.
    """
    with _store(run, spec) as (store, name):
        infos = list_checkpoints(store, name, refused={})
        named, problems = readable_marks(store, name)
        whole = with_marked_metrics(infos, named)
        return StoreListing(store.url, whole, labels_by_id(named), problems)


def read_difference(run: RunDir, spec: RunSpec | None, a: str, b: str) -> CheckpointDifference:
    """Return what differs from the checkpoint with the id `a` to that with the id `b`.

    Raises:
        CheckpointPageError: there is no such checkpoint, or it cannot be read.
    """
    with _store(run, spec) as (store, name):
        entries = {entry.stored.save.id: entry for entry in committed(store, name, {})[0]}
        infos = {info.id: info for info in list_checkpoints(store, name, refused={})}
        for given in (a, b):
            if given not in entries or given not in infos:
                raise CheckpointPageError(f"there is no readable checkpoint {given!r}")
        old, new = (Checkpoint(store, entries[one].stored) for one in (a, b))
        comparison = compare(old, new)
        is_measured = comparison.bytes <= MEASURED_BYTES
        tensors = measured(comparison, old, new) if is_measured else comparison.tensors
        return CheckpointDifference(infos[a], infos[b], comparison, tensors, is_measured)


def read_preview(
    run: RunDir, spec: RunSpec | None, keep: Sequence[str], *, are_own: bool = False
) -> RetentionPreview:
    """Return what `hpckit ckpt prune --dry-run` with these policies finds.

    Args:
        are_own: whether they are those of the run, which may name a metric that no checkpoint has
            yet.

    Raises:
        CheckpointPageError: a policy is wrong, or the store cannot be read.
    """
    try:
        policies = [parse_keep(text) for text in keep]
    except ValueError as error:
        raise CheckpointPageError(str(error)) from None
    if not policies:
        raise CheckpointPageError("give what to keep, such as last=3 every=1000")
    with _store(run, spec) as (store, name):
        choices, damaged = sound_choices(store, name, policies)
        if not are_own and (problem := unknown_names(policies, choices)):
            raise CheckpointPageError(problem)
        return RetentionPreview(plan_prune(store, choices), damaged)


@contextmanager
def _store(run: RunDir, spec: RunSpec | None) -> Iterator[tuple[Store, str]]:
    """Yield the open store of a run's checkpoints, and the run's name in it.

    Raises:
        CheckpointPageError: there is none, or what is done in the block fails.
    """
    url, name = _place(run, spec)
    try:
        with opened(url, interactive_store_options()) as store:
            yield store, name
    except FileNotFoundError as error:
        raise CheckpointPageError(f"the run has no checkpoint yet: {error}") from None
    except (CheckpointError, OSError) as error:
        raise CheckpointPageError(f"the checkpoints cannot be read: {error}") from None


def _place(run: RunDir, spec: RunSpec | None) -> tuple[str, str]:
    if spec is None:
        raise CheckpointPageError("the spec of the run cannot be read, which names its store")
    if spec.command is not None and not (run.checkpoints / _RECORD).is_file():
        raise CheckpointPageError("the run is of a program, which keeps its checkpoints itself")
    if (run.checkpoints / _RECORD).is_file():  # also where the run was moved to
        return str(run.checkpoints), run_name(spec)
    return store_and_name(spec, run)
