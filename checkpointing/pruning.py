"""Removing checkpoints that no policy keeps, and what unfinished saves left."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from checkpointing import durable
from checkpointing.catalog import CheckpointInfo, directories, inspect
from checkpointing.events import Events
from checkpointing.retention import KeepPolicy, keep_reasons

logger = logging.getLogger("checkpointing")


class Pruner:
    """Applies a run's retention; only rank 0 calls it."""

    def __init__(self, steps_dir: Path, keep: Sequence[KeepPolicy], events: Events) -> None:
        self._steps_dir, self._keep, self._events = steps_dir, tuple(keep), events
        self._known: dict[str, CheckpointInfo] = {}  # manifests never change: read once
        self.damaged: set[str] = set()  # ids that failed to load: neither counted nor removed

    def prune(self, newest: str) -> None:
        """Remove what no policy keeps; `newest`, the id just committed, stays in any case."""
        if not self._keep:
            return
        try:
            found = [info for d in directories(self._steps_dir) if (info := self._committed(d))]
            kept = keep_reasons(found, self._keep)
            for info in found:
                if info.id not in kept and info.id != newest:
                    self._remove(info)
        except OSError as error:
            logger.warning("cannot prune %s: %s; trying again next time", self._steps_dir, error)

    def _remove(self, info: CheckpointInfo) -> None:
        durable.remove_checkpoint(info.path)
        self._known.pop(info.id, None)
        self._events.emit("checkpoint_pruned", step=info.step, path=str(info.path))

    def _committed(self, directory: Path) -> CheckpointInfo | None:
        name = directory.name
        if name in self.damaged:
            return None
        if name not in self._known:
            info = inspect(directory)
            if info is None or info.state != "committed":
                return None
            self._known[name] = info
        return self._known[name]


def remove_leftover(directory: Path, events: Events) -> None:
    """Remove what an unfinished save left; what cannot be removed is said, and left for later."""
    try:
        durable.remove_checkpoint(directory)
    except OSError as error:
        logger.warning("cannot remove %s, left by an unfinished save: %s", directory, error)
        return
    events.emit("leftover_removed", path=str(directory))
