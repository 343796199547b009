"""Determines why Slurm ends a job: a person cancelled it, its time limit is near, or it is
preempted."""

from __future__ import annotations

from hpckit.config.spec import ClusterSpec
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import Allocation, is_cancelled
from hpckit.supervisor.time_limit_notice import is_time_up


class TerminationCause:
    """Why the Slurm job of this process, if it is in one, was signalled to end."""

    def __init__(
        self, run: RunDir, job: Allocation | None, cluster: ClusterSpec, events: EventLog
    ) -> None:
        self._run, self._job, self._cluster, self._events = run, job, cluster, events

    def is_cancelled(self) -> bool:
        """Whether a person cancelled the job. Queries Slurm, which may be slow to answer."""
        if self._job is None or self._is_orphan():
            return False
        return is_cancelled(self._job.job)

    def is_time_up(self) -> bool:
        """Whether the job has to leave because of its time limit."""
        if self._is_orphan():
            what = "this node was out of reach, so that an agent of another one ended the job"
            self._events.emit("degraded", what=what)
            return False
        return is_time_up(self._job, self._cluster)

    def _is_orphan(self) -> bool:
        """Whether this node was out of reach, so that an agent of another node ended the job."""
        return self._job is not None and self._run.orphan(self._job.job).exists()
