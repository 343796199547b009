"""Why a job of Slurm's is told to end: by a person, for its time, or to make room."""

from __future__ import annotations

from hpckit.config.spec import ClusterSpec
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import Allocation, is_cancelled
from hpckit.supervisor.time_limit_notice import is_time_up


class TerminationCause:
    """Of this process's job, if it is in one."""

    def __init__(
        self, run: RunDir, job: Allocation | None, cluster: ClusterSpec, events: EventLog
    ) -> None:
        self._run, self._job, self._cluster, self._events = run, job, cluster, events

    def is_cancelled(self) -> bool:
        """Whether a person ends the job for good. Asks Slurm, which may take its time."""
        if self._job is None or self._is_orphan():
            return False
        return is_cancelled(self._job.job)

    def is_time_up(self) -> bool:
        """Whether it is for its time that the job is told to leave."""
        if self._is_orphan():
            what = "this node was out of reach, so that an agent of another one ended the job"
            self._events.emit("degraded", what=what)
            return False
        return is_time_up(self._job, self._cluster)

    def _is_orphan(self) -> bool:
        """Whether this node was out of reach, so that an agent of another one ended the job."""
        return self._job is not None and self._run.orphan(self._job.job).exists()
