"""The process that writes a run's TensorBoard files, as rank 0 has it beside itself."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from hpckit.events.event_log import EventLog

log = logging.getLogger(__name__)

_PROGRAM = (sys.executable, "-m", "hpckit.trainer.metrics.tensorboard_curves")
END_S, DONE_S = 8.0, 60.0
"""Seconds that the end of an attempt waits for it, at most, and that of a run."""


class TensorBoardProcess:
    """`hpckit.trainer.metrics.tensorboard_curves`, from the first record on. It outlives this
    process by a moment, if
    that is killed, and so loses nothing: it is no stray of a dead generation, but a service."""

    def __init__(self, events: EventLog, folder: Path) -> None:
        self._events, self._folder = events, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._is_gone = False

    def ensure(self) -> None:
        """Start it, unless it was; say so once, if it is not there any more."""
        if self._process is None and not self._is_gone:
            self._start()
        elif self._process is not None and self._process.poll() is not None:
            self._drop(f"their process ended with {self._process.returncode}")

    def end(self, is_done: bool) -> None:
        """Have it write what is left; `is_done`: nobody else will."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            returncode = self._process.wait(DONE_S if is_done else END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            log.warning("TensorBoard files lack the newest records, which the next attempt adds")
            return
        if returncode:
            self._drop(f"their process ended with {returncode}")

    def _start(self) -> None:
        command = [*_PROGRAM, str(self._events.path), str(self._folder)]
        own = {"PYTHONPATH": os.pathsep.join(sys.path), "HPCKIT_SERVICE": "curves"}
        try:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._drop(str(error))

    def _drop(self, why: str) -> None:
        """Go on without: the events have it all."""
        self._process, self._is_gone = None, True
        log.error("no more TensorBoard files: %s", why)
        self._events.emit("degraded", what=f"no more TensorBoard files: {why}")
