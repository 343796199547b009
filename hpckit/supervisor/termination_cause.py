"""Determines why Slurm ends a job: a person cancelled it, its time limit is near, or it is
preempted.

The signal alone does not reveal the cause. Slurm records the time of a preemption; without one, the
end of the job is near. The limit may have been changed since the job started.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import time

from hpckit.config.spec import ClusterSpec
from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import Allocation, is_cancelled
from hpckit.slurm.scontrol import field, show_job
from hpckit.text.slurm_times import parse_time

log = logging.getLogger(__name__)

_TIMEOUT_S = 3.0  # the job is about to end, and messages of its agents wait meanwhile
EARLY_S = 90.0
"""Seconds by which Slurm may signal before the configured notice: it checks every half minute, and
documents that the signal may come up to a minute early."""


_WRAPPED_S = 1000 * 365 * 86400
"""Seconds of a time limit that is none: `scontrol update EndTime` of a job without a limit
subtracts from 2**32 - 1 minutes. Seen with Slurm 22.05."""


class TerminationCause:
    """Determines why the Slurm job of this process, if it is in one, was signalled to end."""

    def __init__(
        self, run: RunDir, job: Allocation | None, cluster: ClusterSpec, events: EventLog
    ) -> None:
        self._run, self._job, self._cluster, self._events = run, job, cluster, events

    def is_cancelled(self) -> bool:
        """Returns whether a person cancelled the job. Queries Slurm, which may be slow to
        answer."""
        if self._job is None or self._is_orphan():
            return False
        return is_cancelled(self._job.job)

    def is_time_up(self) -> bool:
        """Returns whether the job has to leave because of its time limit."""
        if self._is_orphan():
            what = "this node was unreachable, so an agent of another node ended the job"
            self._events.emit(Degraded(subject=DegradedSubject.NODE_CONNECTION, what=what))
            return False
        return is_time_up(self._job, self._cluster)

    def _is_orphan(self) -> bool:
        """Returns whether this node was unreachable, so that an agent of another node ended the
        job."""
        return self._job is not None and self._run.orphan(self._job.job).exists()


def is_time_up(job: Allocation | None, cluster: ClusterSpec) -> bool:
    """Returns whether a signalled job has to leave because of its time limit; False outside of
    Slurm."""
    if job is None or cluster.slurm is None:
        return False
    notice_s = cluster.slurm.notice_s
    try:
        text = show_job(job.job, _TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot find out when job %s has to end: %s", job, error)
        return is_near(os.environ.get("SLURM_JOB_END_TIME"), notice_s, time.time())
    return shows_time_limit(text, notice_s, time.time())


def shows_time_limit(text: str, notice_s: float, now: float) -> bool:
    """Returns the same as `is_time_up`, from the output of `scontrol show job`, with times in
    seconds since the epoch, as `now`.

    A preemption also moves the end of the job, and Slurm forgets the time of the preemption when it
    requeues the job. So the end has to be that of the time limit, too.

    Args:
        notice_s: seconds before the time limit at which Slurm is to signal the job.
    """
    if field(text, "PreemptTime") not in (None, "None"):
        return False
    if field(text, "Reason") == "TimeLimit":
        return True
    limit = _end_by_limit(text)
    is_by_limit = limit is None or limit - now <= notice_s + EARLY_S
    return is_by_limit and is_near(field(text, "EndTime"), notice_s, now)


def _end_by_limit(text: str) -> float | None:
    """Returns when the time limit of a job ends, in seconds since the epoch, if it was never
    suspended; infinity if there is no limit, None if it is unknown."""
    limit, start = field(text, "TimeLimit"), field(text, "StartTime")
    if limit == "UNLIMITED":
        return math.inf
    seconds = parse_time(limit or "")
    if seconds is None or seconds > _WRAPPED_S or start is None or not start.isdigit():
        return None
    return int(start) + seconds


def is_near(end: str | None, notice_s: float, now: float) -> bool:
    """Returns whether the end, in seconds since the epoch, is near enough for the notice."""
    return end is not None and end.isdigit() and int(end) - now <= notice_s + EARLY_S
