"""Completes the TensorBoard files of a run that has ended.

A process beside rank 0 writes these files. If it ended with its node, the next attempt writes the
missing records; after the last attempt, the supervisor has them written.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable

from hpckit.events.event_log import EventLog, EventTail
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.rundir.directory import RunDir
from hpckit.system.os_errors import describe_error
from hpckit.trainer.metrics.tensorboard_curves import bytes_written, point_of

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""The largest number of seconds that a job waits for it."""
_POLL_S = 0.05


def finish_curves(run: RunDir, events: EventLog, is_asked_to_leave: Callable[[], bool]) -> None:
    """Writes the records that the files lack, unless this process is asked to leave meanwhile. A
    failure is reported in the log and in a `degraded` event, as the run is over either way."""
    try:
        problem = _write(run, is_asked_to_leave) if _has_missing_records(run) else None
    except OSError as error:
        problem = describe_error(error)
    if problem:
        what = (
            f"TensorBoard files lack the newest records: {problem}; write them with: python -m "
            "hpckit.trainer.metrics.tensorboard_curves events.jsonl tensorboard "
            "</dev/null"
        )
        log.warning(what)
        events.emit(Degraded(subject=DegradedSubject.TENSORBOARD, what=what))


def _has_missing_records(run: RunDir) -> bool:
    tail = EventTail(run.events, offset=bytes_written(run.tensorboard))
    return any(point_of(event) is not None for event in tail.read())


def _write(run: RunDir, is_asked_to_leave: Callable[[], bool]) -> str | None:
    """Writes the missing records; returns why that failed, or None."""
    files = (str(run.events), str(run.tensorboard))
    command = [sys.executable, "-m", "hpckit.trainer.metrics.tensorboard_curves", *files]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            is_late = time.monotonic() > deadline
            if is_late or is_asked_to_leave():
                process.kill()
                return f"not finished after {PATIENCE_S:g} s" if is_late else "the job had to end"
            time.sleep(_POLL_S)
        assert process.stderr is not None
        errors = process.stderr.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        return errors[-1] if errors else f"exit status {process.returncode}"
    return None
