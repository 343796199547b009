"""The process that rank 0 starts to write the TensorBoard files of a run."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject

log = logging.getLogger(__name__)

_PROGRAM = (sys.executable, "-P", "-m", "hpckit.trainer.metrics.tensorboard_curves")
END_S, DONE_S = 8.0, 60.0
"""Most seconds for which the end of an attempt, and the end of a run, waits for the process."""


class TensorBoardProcess:
    """The process `hpckit.trainer.metrics.tensorboard_curves`, which is started with the first
    record.

    If rank 0 is killed, the process first writes all events, and does not count as a process that
    an ended generation has left.
    """

    def __init__(self, events: EventLog, folder: Path) -> None:
        self._events, self._folder = events, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._is_gone = False

    def ensure(self) -> None:
        """Start the process if it was not started; warn once if it has died."""
        if self._process is None and not self._is_gone:
            self._start()
        elif self._process is not None and self._process.poll() is not None:
            self._give_up(f"their process ended with {self._process.returncode}")

    def end(self, is_done: bool) -> None:
        """End the process after it has written all events; `is_done`: the run has ended, so that no
        later process will write the rest."""
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
            self._give_up(f"their process ended with {returncode}")

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
            self._give_up(str(error))

    def _give_up(self, why: str) -> None:
        """Report that training continues without TensorBoard files; the events have all records."""
        self._process, self._is_gone = None, True
        log.error("TensorBoard files are no longer written: %s", why)
        self._events.emit(
            Degraded(
                subject=DegradedSubject.TENSORBOARD,
                what=f"TensorBoard files are no longer written: {why}",
            )
        )
