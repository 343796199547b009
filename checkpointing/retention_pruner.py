"""Prunes a run after each commit: checkpoints that no policy keeps are removed, and the best one is
marked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from checkpointing.errors import CheckpointError
from checkpointing.events import CheckpointPruned, Events
from checkpointing.retention import Best, KeepPolicy
from checkpointing.store.deletion.checkpoint_prune import PruneChoice, choose_removals, prune
from checkpointing.store.pins_and_labels import BEST, marks, put_mark
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")


_MOST_LOOKS = 10
"""Each further look needs another process that has changed the mark meanwhile."""


class Pruner:
    """Applies a run's retention policies; only rank 0 calls it."""

    def __init__(self, store: Store, run: str, keep: Sequence[KeepPolicy], events: Events) -> None:
        self._store, self._run, self._events = store, run, events
        self.keep = tuple(keep)
        self.damaged: set[str] = set()  # ids that failed to load: neither counted nor removed
        self.skipped: set[str] = set()  # ids from which no restore continues: not counted

    def prune(self, newest: str) -> None:
        """Remove the checkpoints that no policy keeps, but never `newest`, the id just
        committed."""
        if not self.keep:
            return
        try:
            result = prune(
                self._store,
                self._run,
                self.keep,
                keep=frozenset({newest}),
                ignore=frozenset(self.damaged),
                skipped=frozenset(self.skipped),
            )
            self._mark_best(result.choices)
        except CheckpointError as error:
            logger.warning(
                "cannot prune %s: %s; trying again after the next save", self._store.url, error
            )
            return
        for id_ in result.removed:
            self._events.emit(CheckpointPruned(step=int(id_.partition("-")[0]), id=id_))
        for id_, why in result.spared.items():
            logger.warning("checkpoint %s is not removed yet: %s", id_, why)

    def _mark_best(self, choices: Sequence[PruneChoice]) -> None:
        """Set the mark of the best checkpoint, according to the first policy that ranks by a
        metric."""
        policy = next((each for each in self.keep if isinstance(each, Best)), None)
        usable = [choice for choice in choices if choice.id not in self.skipped]
        best = None if policy is None else best_of(usable, policy)
        if policy is None or best is None:
            return
        had = marks(self._store, self._run).get(BEST)
        if had is None or had.id != best.id:
            ignored = frozenset(self.damaged | self.skipped)
            mark_best(self._store, self._run, policy, ignored)


def mark_best(
    store: Store, run: str, policy: Best, ignore: frozenset[str] = frozenset()
) -> PruneChoice | None:
    """Give the mark of the best checkpoint to the one that `policy` ranks first, and return it;
    None if no checkpoint has the metric.

    Several processes may call this concurrently, as evaluations that end together do. Each of
    them looks again after it has written the mark, so that the last writer has seen the metrics of
    all.

    Args:
        ignore: ids that do not count.

    Raises:
        CheckpointError: the store cannot be read or written, or the best checkpoint is being
            removed.
    """
    best: PruneChoice | None = None
    for _ in range(_MOST_LOOKS):
        best = best_of(choose_removals(store, run, (), ignore), policy)
        had = marks(store, run).get(BEST)
        if best is None or (had is not None and had.id == best.id):
            break
        value = best.metrics[policy.metric]
        put_mark(store, best.found.stored.save, BEST, f"{policy.metric} {value:.6g}")
    return best


def best_of(choices: Sequence[PruneChoice], policy: Best) -> PruneChoice | None:
    """Returns the first checkpoint that `policy` keeps; None if none has its metric."""
    newest_first = sorted(choices, key=lambda c: (c.step, c.created, c.id), reverse=True)
    best = replace(policy, n=1).reasons(newest_first)
    return next((choice for choice in choices if choice.id in best), None)
