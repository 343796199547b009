"""Handling of a job with `--requeue=expedite` at its end.

Slurm queues such a job again before all other jobs when it gives up one of the job's nodes. It also
queues it again if its batch process exits with another status than 0: before all other jobs if an
Epilog failed, and held (REQUEUE_HOLD) if none did. A run that has ended must leave no such job
behind, and one that has lost a node must not requeue its job before Slurm does. (By
batch_requeue_fini() and its callers in slurmctld/job_mgr.c; seen with Slurm 26.05, but for the
Epilog.)
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterable, Sequence

from hpckit.agent.orphaned_job import PATIENCE_S, Ask, is_left_to_slurm, is_running
from hpckit.events.event_log import Event, EventLog
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    JobRequeued,
    NodeLost,
    RunStarted,
    WorkerStarted,
)
from hpckit.slurm.allocation import restarts, shows_requeue, shows_user_cancel
from hpckit.slurm.scontrol import run_scontrol, show_job, shows_expedite
from hpckit.slurm.slurm_query import query

log = logging.getLogger(__name__)

CHECK_S = 30.0
"""Seconds in which Slurm finds out that a node does not answer (MessageTimeout, by default 10)."""
_TIMEOUT_S = 10.0
_POLL_S = 1.0


def is_expedited(job: str) -> bool:
    """Returns whether Slurm says that the job was submitted with `--requeue=expedite`; False if it
    does not answer."""
    try:
        return shows_expedite(show_job(job, _TIMEOUT_S))
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot find out whether job %s has expedited requeues: %s", job, error)
        return False


def lost_hosts(events: Iterable[Event]) -> list[str]:
    """Returns the nodes of the last started job on which an agent was lost, and after which no
    ranks were started again: otherwise the node is back, or the job goes on without it. Pure."""
    lost: dict[int, tuple[int, str]] = {}
    for event in events:
        if isinstance(event, RunStarted):
            lost.clear()
        elif isinstance(event, NodeLost) and event.node is not None and event.host is not None:
            lost[event.node] = (event.generation or 0, event.host)
        elif isinstance(event, WorkerStarted):
            begun = event.generation or 0
            lost = {node: one for node, one in lost.items() if one[0] >= begun}
    return [host for _, host in lost.values()]


def wait_for_requeue(
    job: str,
    hosts: Sequence[str],
    events: EventLog,
    ask: Ask | None = None,
    check_s: float = CHECK_S,
    patience_s: float = PATIENCE_S,
) -> bool:
    """Waits until Slurm gives up a node of the job and requeues the job. Returns whether nothing is
    left to do: Slurm has requeued the job, or a person has cancelled it meanwhile. It returns False
    soon if all nodes answer, or if the job goes on without those that do not.

    Args:
        hosts: the nodes that may not answer.
        check_s: limit in seconds of the wait for a node that answers to be found silent.
        patience_s: limit in seconds of the wait for a silent node to be given up.
    """
    ask, begun_s, is_silent = ask or _ask, time.monotonic(), False
    problem = _contact_nodes(job, ask) if hosts else None
    while hosts and problem is None:
        try:
            text = ask(["scontrol", "--oneliner", "show", "job", job])
            if shows_requeue(text, restarts()):
                log.info("Slurm has requeued job %s", job)
                events.emit(JobRequeued(job=job))
                return True
            if shows_user_cancel(text, restarts()):
                log.warning("job %s is cancelled, so it is not requeued", job)
                return True
            if not is_running(text):  # its time is up, or it is preempted: there are seconds left
                return False
            was_silent, is_silent = is_silent, is_left_to_slurm(text, hosts, ask)
            if was_silent > is_silent:
                return False
            if is_silent > was_silent:
                _report_wait(job, hosts, events)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("cannot query Slurm about the nodes of job %s: %s", job, error)
        if time.monotonic() - begun_s > (patience_s if is_silent else check_s):
            return False
        time.sleep(_POLL_S)
    return False


def _contact_nodes(job: str, ask: Ask) -> str | None:
    """Has Slurm's controller contact all nodes of the job now, by a signal that has no effect.
    Returns why it does not, or None."""
    try:
        ask(["scancel", "--signal=URG", job])
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot have Slurm contact the nodes of job %s: %s", job, error)
        return str(error)
    return None


def _report_wait(job: str, hosts: Sequence[str], events: EventLog) -> None:
    names = ", ".join(hosts)
    what = f"job {job} keeps its place, and is queued again when Slurm gives up {names}"
    log.warning(what)
    events.emit(Degraded(subject=DegradedSubject.EXPEDITED_START, what=what))


def _ask(command: Sequence[str]) -> str:
    return query(command, _TIMEOUT_S, variables={"SLURM_TIME_FORMAT": "%s"})


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
