"""Prunes checkpoints that no retention policy keeps: decides which, with the reason, and removes
their manifests.

Their packs are removed later, by checkpointing/store/deletion/pack_sweep.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from checkpointing.errors import DamagedError, FormatError, SaveError
from checkpointing.format.manifest import ManifestContent
from checkpointing.format.values.branch_kinds import RECORD
from checkpointing.retention import Decision, KeepPolicy, decide
from checkpointing.store.catalog import CatalogEntry, committed
from checkpointing.store.deletion.manifest_removal import marking_for_deletion, revisions
from checkpointing.store.deletion.pack_sweep import GRACE_S, SweepResult, sweep
from checkpointing.store.pins_and_labels import (
    marked_metrics,
    marks,
    pinned_by,
    remove_metrics,
)
from checkpointing.store.repair import manifest_revision
from checkpointing.store.sessions.session import Session
from checkpointing.store.store import Store


@dataclass(frozen=True)
class PruneChoice:
    """The decision about one checkpoint."""

    found: CatalogEntry
    decision: Decision
    marked: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Metrics that marks have given it after its commit."""

    @property
    def id(self) -> str:
        return self.found.stored.save.id

    @property
    def step(self) -> int:
        return self.found.stored.save.step

    @property
    def created(self) -> float:
        return self.found.document.header.created

    @property
    def metrics(self) -> Mapping[str, float]:
        return {**self.found.document.header.metrics, **self.marked}

    @property
    def is_suspect(self) -> bool:
        return self.found.document.header.is_suspect

    @property
    def certified(self) -> str:
        return self.found.document.header.certified

    @property
    def drops(self) -> tuple[str, ...]:
        """The items that are removed while others stay. No item is removed if nothing would stay:
        policies that name only items which do not exist (a typing error) keep all of it."""
        keep, items = self.decision.items or (), self.found.document.items
        keep = (*keep, RECORD) if set(keep) & set(items) else tuple(items)
        return tuple(item for item in items if item not in keep)


@dataclass
class PruneResult:
    """The result of a prune."""

    choices: list[PruneChoice]
    removed: list[str] = field(default_factory=list)  # ids of removed checkpoints
    reduced: list[str] = field(default_factory=list)  # ids of checkpoints that lost items
    spared: dict[str, str] = field(default_factory=dict)  # id -> why it could not be removed now
    swept: SweepResult | None = None


@dataclass(frozen=True)
class _Row:
    """What retention policies look at."""

    step: int
    id: str
    created: float
    metrics: Mapping[str, float]
    is_suspect: bool = False
    certified: str = ""


def choose_removals(
    store: Store,
    run: str,
    policies: Sequence[KeepPolicy],
    ignore: frozenset[str] = frozenset(),
    skipped: frozenset[str] = frozenset(),
) -> list[PruneChoice]:
    """Return the decisions that `policies` and pins make on a run's checkpoints, newest first.
    Changes nothing.

    Args:
        ignore: ids that neither count nor are removed.
        skipped: ids from which the run does not continue any more. They do not count for the
            others, and are kept themselves as long as if they did.

    Raises:
        DamagedError, FormatError: a checkpoint mark cannot be read, so it is not known what is
            pinned.
    """
    found = [f for f in committed(store, run)[0] if f.stored.save.id not in ignore]
    named = marks(store, run).values()
    given = marked_metrics(named)
    rows = [_row(f, given.get(f.stored.save.id, {})) for f in found]
    decisions = decide(rows, policies, pinned_by(named))
    if skipped:
        usable = [row for row in rows if row.id not in skipped]
        decisions |= decide(usable, policies, pinned_by(named))
    ids = [f.stored.save.id for f in found]
    return [PruneChoice(f, decisions[i], given.get(i, {})) for f, i in zip(found, ids, strict=True)]


def prune(
    store: Store,
    run: str,
    policies: Sequence[KeepPolicy],
    *,
    grace_s: float = GRACE_S,
    keep: frozenset[str] = frozenset(),
    ignore: frozenset[str] = frozenset(),
    skipped: frozenset[str] = frozenset(),
) -> PruneResult:
    """Remove what no policy keeps. May run on any host, concurrently with saves, readers and other
    prunes. A checkpoint that is being read or revised is spared until the next prune.

    Args:
        grace_s: seconds that packs stay after they were marked for deletion, besides what leases
            require.
        keep: ids that stay in any case.
        ignore: ids that neither count nor are removed, because the caller has found them damaged.
        skipped: as of `choose_removals`.

    Raises:
        StoreError: the store is out of reach; another prune continues from there.
    """
    result = PruneResult(choose_removals(store, run, policies, ignore, skipped))
    changes = [c for c in result.choices if (c.decision.goes or c.drops) and c.id not in keep]
    if changes:
        _apply(store, run, changes, result)
    result.swept = sweep(store, grace_s=grace_s)
    return result


def _apply(store: Store, run: str, changes: Sequence[PruneChoice], result: PruneResult) -> None:
    removable = revisions(store, [choice.found.stored.save for choice in changes])
    with marking_for_deletion(
        store, [key for keys in removable.values() for key in keys]
    ) as removal:
        # read after the mark for deletion, which `pin` looks for
        named = marks(store, run).values()
        pinned, marked = pinned_by(named), marked_metrics(named)
        for choice in changes:
            save = choice.found.stored.save
            if why := pinned.get(choice.id) or removal.why_needed(save):
                result.spared[choice.id] = why
            elif choice.decision.goes:
                removal.remove(save)
                result.removed.append(choice.id)
            else:
                _reduce(store, run, choice, result)
    removed = [c.found.stored.save for c in changes if c.id in marked and c.id in result.removed]
    if removed:
        remove_metrics(store, removed)


def _reduce(store: Store, run: str, choice: PruneChoice, result: PruneResult) -> None:
    keep = (*(choice.decision.items or ()), RECORD)

    def change(content: ManifestContent) -> ManifestContent:
        return manifest_revision.drop_items(content, keep)

    try:
        with Session(store, run) as session:
            manifest_revision.publish(store, session, choice.found, change)
    except (SaveError, DamagedError, FormatError, FileNotFoundError) as error:
        result.spared[choice.id] = str(error)
    else:
        result.reduced.append(choice.id)


def _row(found: CatalogEntry, marked: Mapping[str, float]) -> _Row:
    header = found.document.header
    save, metrics = header.save, {**header.metrics, **marked}
    return _Row(save.step, save.id, header.created, metrics, header.is_suspect, header.certified)
