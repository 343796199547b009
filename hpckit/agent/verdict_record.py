"""The record of a generation's verdict, with the kinds of verdicts and their exit statuses.

`hpckit.supervisor.verdict` decides on the kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hpckit.agent.exit_report import WorkerError


class VerdictKind(StrEnum):
    """Why a generation ended."""

    DONE = "done"
    STOPPED = "stopped"
    """Its user stopped it, after a save."""
    PREEMPTED = "preempted"
    """The nodes were wanted back."""
    TIME_LIMIT = "time_limit"
    """The job's time limit was near."""
    EVICTED = "evicted"
    """A node that slowed all others down is replaced."""
    INFRA = "infra"
    """A node or its agent was lost, or too few nodes are healthy."""
    HANG = "hang"
    """Ranks finished no step in time."""
    OOM = "oom"
    """The memory of a GPU or of a node ran out."""
    CRASH = "crash"
    """Workers failed more often than they may be restarted in place."""
    PERMANENT = "permanent"
    """An error occurred that no further attempt can avoid."""


# Exit status of the job, after sysexits.h: 70 EX_SOFTWARE, 75 EX_TEMPFAIL.
EXIT_STATUS = {
    VerdictKind.DONE: 0,
    VerdictKind.STOPPED: 130,
    VerdictKind.PREEMPTED: 75,
    VerdictKind.TIME_LIMIT: 75,
    VerdictKind.EVICTED: 75,
    VerdictKind.INFRA: 75,
    VerdictKind.HANG: 70,
    VerdictKind.OOM: 70,
    VerdictKind.CRASH: 70,
    VerdictKind.PERMANENT: 70,
}
REFUSED = 2
"""Exit status if nothing was started."""
LEAVES = (VerdictKind.PREEMPTED, VerdictKind.TIME_LIMIT)
"""Kinds that end on request: they are no failure, and the next generation belongs to another
job."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a generation, as in `verdict.json`."""

    kind: VerdictKind
    final: bool
    """Whether no further generation follows by itself."""
    reason: str
    """One line for people."""
    error: WorkerError | None = None

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.kind]
