"""Handling of a job with `--requeue=expedite` at its end.

Slurm queues such a job again if its batch process exits with another status than 0: before all
other jobs if an Epilog failed, and held (REQUEUE_HOLD) if none did. A run that has ended
must leave no such job behind. (By job_hold_requeue() and batch_requeue_fini() of
slurmctld/job_mgr.c, Slurm 25.11.)
"""

from __future__ import annotations

import logging
import subprocess

from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.slurm.scontrol import field, run_scontrol, show_job

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0


def is_expedited(job: str) -> bool:
    """Returns whether Slurm says that the job was submitted with `--requeue=expedite`; False if it
    does not answer."""
    try:
        return shows_expedite(show_job(job, _TIMEOUT_S))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot find out whether job %s has expedited requeues: %s", job, error)
        return False


def shows_expedite(text: str) -> bool:
    """Returns whether the output of `scontrol show job` is that of a job with expedited requeues.
    Pure."""
    return field(text, "ExpeditedRequeue") == "Yes"


def let_job_end(job: str, events: EventLog) -> None:
    """Keeps Slurm from queueing the job of this process again after its end, if it would."""
    if not is_expedited(job):
        return
    problem = run_scontrol(["update", f"JobId={job}", "Requeue=0"], _TIMEOUT_S)
    if problem is None:
        log.info("job %s is not requeued when it ends", job)
        return
    what = f"job {job} may be left in the queue (REQUEUE_HOLD); scancel {job} removes it: {problem}"
    log.error(what)
    events.emit(Degraded(subject=DegradedSubject.SUCCESSOR_CANCELLATION, what=what))
