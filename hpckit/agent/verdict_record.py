"""What is recorded of how a generation ended: the kinds of verdicts, and the exit status of each.

`hpckit.supervisor.verdict` decides which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hpckit.agent.exit_report import WorkerError


class VerdictKind(StrEnum):
    """Why a generation ended."""

    DONE = "done"
    STOPPED = "stopped"
    """By its user, after a save."""
    PREEMPTED = "preempted"
    """The nodes were wanted back."""
    TIME_LIMIT = "time_limit"
    """The time of the job was nearly up."""
    INFRA = "infra"
    """A node or its agent was lost, or too few nodes are healthy."""
    HANG = "hang"
    """Ranks finished no step."""
    OOM = "oom"
    """The memory of a GPU or of a node ran out."""
    CRASH = "crash"
    """Workers failed, more often than they may be restarted in place."""
    PERMANENT = "permanent"
    """An error that no further attempt can mend."""


# Exit status of the job, after sysexits.h: 70 EX_SOFTWARE, 75 EX_TEMPFAIL.
EXIT_STATUS = {
    VerdictKind.DONE: 0,
    VerdictKind.STOPPED: 130,
    VerdictKind.PREEMPTED: 75,
    VerdictKind.TIME_LIMIT: 75,
    VerdictKind.INFRA: 75,
    VerdictKind.HANG: 70,
    VerdictKind.OOM: 70,
    VerdictKind.CRASH: 70,
    VerdictKind.PERMANENT: 70,
}
REFUSED = 2
"""Exit status where nothing was started."""
LEAVES = (VerdictKind.PREEMPTED, VerdictKind.TIME_LIMIT)
"""On request: no failure, and the next generation is another job's."""


@dataclass(frozen=True)
class Verdict:
    """What is said of a generation in `verdict.json`."""

    kind: VerdictKind
    final: bool
    """No further generation follows by itself."""
    reason: str
    """One line for a person."""
    error: WorkerError | None = None

    @property
    def exit_status(self) -> int:
        return EXIT_STATUS[self.kind]
