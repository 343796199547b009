"""How a Slurm job is gone on from that has to leave before the end of its run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from hpckit.launch.allocation import Allocation
from hpckit.launch.chain import Chain, come_again
from hpckit.launch.exclusion import Exclusion
from hpckit.run.directory import RunDir
from hpckit.run.events import EventLog
from hpckit.run.spec import RunSpec

log = logging.getLogger(__name__)

MOST_SILENT = 3
"""Jobs in a row that may be killed before they have a checkpoint, with another one after them."""
KEEP_S = 10.0
"""Seconds in which a job that leaves tries once more to have a successor."""


@contextmanager
def chained(
    run: RunDir, spec: RunSpec, submission: int, job: Allocation, events: EventLog
) -> Iterator[Chain]:
    """Have another job wait, that goes on where this one has to leave. It is cancelled at the end
    of the block, unless it is kept or this process is killed."""
    from hpckit.launch.submit import submit_job  # which hands the supervisor to submitit

    queue = partial(submit_job, run, spec, submission, job.job if job.is_task else None)
    bad = Exclusion(run, spec, events)
    with Chain(lambda: queue(bad.hosts()).job_id, events, bad.keep_from) as chain:
        yield chain


def is_hopeless(silent: int, events: EventLog) -> bool:
    """Whether so many jobs have ended without a word that no other one is to come."""
    if silent < MOST_SILENT:
        return False
    what = f"{silent} jobs have ended without a word or a checkpoint: no other is queued"
    log.error(what)
    events.emit("degraded", what=what)
    return True


def requeue(run: RunDir, spec: RunSpec, job: str, events: EventLog) -> None:
    """Have the job itself run again, on other nodes than those that are bad."""
    again = partial(come_again, job, events, KEEP_S)
    Exclusion(run, spec, events).keep_from(job, KEEP_S, again)
