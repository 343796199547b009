"""The trainer's own prune: after a commit, what no policy keeps goes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from checkpointing.errors import CheckpointError
from checkpointing.events import Events
from checkpointing.retention import KeepPolicy
from checkpointing.store.prune import prune
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")


class Pruner:
    """Applies a run's retention; only rank 0 calls it."""

    def __init__(self, store: Store, run: str, keep: Sequence[KeepPolicy], events: Events) -> None:
        self._store, self._run, self._events = store, run, events
        self.keep = tuple(keep)
        self.damaged: set[str] = set()  # ids that failed to load: neither counted nor removed

    def prune(self, newest: str) -> None:
        """Remove what no policy keeps; `newest`, the id just committed, stays in any case."""
        if not self.keep:
            return
        try:
            result = prune(
                self._store,
                self._run,
                self.keep,
                keep=frozenset({newest}),
                ignore=frozenset(self.damaged),
            )
        except CheckpointError as error:
            logger.warning("cannot prune %s: %s; trying again next time", self._store.url, error)
            return
        for id_ in result.removed:
            self._events.emit("checkpoint_pruned", step=int(id_.partition("-")[0]), id=id_)
        for id_, why in result.spared.items():
            logger.warning("checkpoint %s stays for now: %s", id_, why)
