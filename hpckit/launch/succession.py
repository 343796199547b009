"""A job that begins while the one before it is still there, though Slurm has given that up.

A node that is cut off from Slurm may reach the run's folder all the same: the supervisor on it
finds out, and ends by itself, but that takes it some time, in which its successor has begun.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hpckit.elastic.orphan import is_running
from hpckit.run.events import Event
from hpckit.run.lock import RunHeldError, hold_all
from hpckit.run.scontrol import show_job

log = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""Seconds for a job that Slurm has given up to end: it asks Slurm several times, each in vain."""
_POLL_S = 1.0
_QUERY_S = 20.0


@contextmanager
def hold_after(
    paths: Iterable[Path],
    what: str,
    is_ending: Callable[[RunHeldError], bool],
    patience_s: float = PATIENCE_S,
) -> Iterator[None]:
    """As `hold_all`; it waits for one that holds them if `is_ending` says so, asked once.

    Raises:
        RunHeldError: one of them is held by somebody else, who does not end, or not in time.
    """
    paths, deadline, asked = list(paths), time.monotonic() + patience_s, False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(hold_all(paths, what))
                break
            except RunHeldError as error:
                if time.monotonic() > deadline or not (asked or is_ending(error)):
                    raise
                if not asked:
                    log.warning("%s: waiting for its end", error)
                asked = True
                time.sleep(_POLL_S)
        yield


def former_job(events: Iterable[Event]) -> str | None:
    """The job whose supervisor began last; None: it was in none."""
    started = [event for event in events if event.kind == "run_started"]
    job = started[-1].get("job") if started else None
    return str(job) if job is not None else None


def is_given_up(former: str | None, mine: str, ask: Callable[[str], str] | None = None) -> bool:
    """Whether Slurm holds the former job for over, or, where it was this one, has requeued it. One
    that Slurm says nothing of is over: Slurm forgets those alone.

    Args:
        former, mine: numbers of jobs. None: no job, so it is none of Slurm's affair.
        ask: for what `scontrol show job` says of one; for tests.
    """
    if former is None or former == mine:
        return former is not None
    try:
        told = (ask or _ask)(former)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("Slurm tells nothing of job %s: %s", former, error)
        return True
    return not is_running(told)


def _ask(job: str) -> str:
    return show_job(job, _QUERY_S)
