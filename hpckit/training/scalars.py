"""TensorBoard files, which training goes on without if they cannot be written."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hpckit.run.events import EventLog

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

log = logging.getLogger(__name__)


class Scalars:
    """Files in one folder, from the first record on: until then nothing is imported or opened,
    which takes about half a second that the first step need not wait for."""

    def __init__(self, folder: Path, events: EventLog, at: int) -> None:
        """`at`: steps finished; what a life before this one wrote of later ones does not count."""
        self._folder, self._events, self._at = folder, events, at
        self._writer: SummaryWriter | None = None
        self._is_dropped = False

    def write(self, step: int, record: Mapping[str, float]) -> None:
        """Scalars of one step."""
        if self._is_dropped:
            return
        try:
            writer = self._writer or self._open()
            for name, value in record.items():
                writer.add_scalar(name, value, step)
        except OSError as error:
            self._drop(error)

    def close(self) -> None:
        """Write out what is buffered."""
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError as error:
            self._drop(error)

    def _open(self) -> SummaryWriter:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder), purge_step=self._at + 1)
        return self._writer

    def _drop(self, error: OSError) -> None:
        """Go on without: the events have it all."""
        self._writer, self._is_dropped = None, True
        log.error("no more TensorBoard files: %s", error)
        self._events.emit("degraded", what=f"no more TensorBoard files: {error}")
