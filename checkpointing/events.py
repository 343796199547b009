"""Reports events to the caller through `on_event(kind, **fields)`."""

from __future__ import annotations

import logging
from typing import Any, Protocol

logger = logging.getLogger("checkpointing")


class OnEvent(Protocol):
    """A callback for events, called on rank 0 only, from the trainer's thread or the writer's."""

    def __call__(self, kind: str, **fields: Any) -> None: ...


class Events:
    """Passes events on if `on_event` is set and this is rank 0."""

    def __init__(self, on_event: OnEvent | None, rank: int) -> None:
        self.rank = rank
        self._on_event = on_event if rank == 0 else None

    def emit(self, kind: str, **fields: Any) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(kind, **fields)
        except Exception:
            # an exception in the callback must not cost a checkpoint
            logger.exception("on_event failed for %s %s", kind, fields)
