"""TensorBoard files of a run that is over, as nobody else will write what they lack.

The process beside rank 0 writes them. If it ended with its node, the next attempt adds the rest; of
the last one, the supervisor has it added.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable

from hpckit.events.event_log import EventLog, EventTail
from hpckit.rundir.directory import RunDir
from hpckit.system.os_errors import describe
from hpckit.trainer.metrics.tensorboard_curves import bytes_written, point_of

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""Seconds that a job stays for it, at most."""
_POLL_S = 0.05


def finish_curves(run: RunDir, events: EventLog, is_asked_to_leave: Callable[[], bool]) -> None:
    """Have written what the files lack, unless this process is asked to leave meanwhile. If that
    fails it is said in the log and in an event; the run is over either way."""
    try:
        problem = _write(run, is_asked_to_leave) if _is_any_left(run) else None
    except OSError as error:
        problem = describe(error)
    if problem:
        what = (
            f"TensorBoard files lack the newest records: {problem}; to have them written: "
            "python -m hpckit.trainer.metrics.tensorboard_curves events.jsonl tensorboard "
            "</dev/null"
        )
        log.warning(what)
        events.emit("degraded", what=what)


def _is_any_left(run: RunDir) -> bool:
    tail = EventTail(run.events, offset=bytes_written(run.tensorboard))
    return any(point_of(event) is not None for event in tail.read())


def _write(run: RunDir, is_asked_to_leave: Callable[[], bool]) -> str | None:
    """Why they were not written."""
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
                return f"not done after {PATIENCE_S:g} s" if is_late else "the job was to end"
            time.sleep(_POLL_S)
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        return said[-1] if said else f"exit status {process.returncode}"
    return None
