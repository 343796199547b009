"""Picks the fastest way of continuing a run that a site supports, as pure functions.

By sbatch(1), slurm.conf(5) and job_mgr.c of Slurm 25.11 to 26.11, and as seen with 26.05 but for
the Epilog, an expedited requeue (`sbatch --requeue=expedite`) has these properties:

- It exists from 25.11 on, and sbatch refuses it unless `SlurmctldParameters` has
  `enable_expedited_requeue`.
- A job that loses a node is queued again by Slurm, before all other jobs, without the delay of
  other requeues, and its nodes start no other job meanwhile.
- A job that goes on without a lost node (`--no-kill`) is not queued again. A requeue of its own, or
  by an agent, gives it the usual priority.
- A job whose batch process exits with another status than 0 is queued again likewise if an Epilog
  failed. If none did, it is held in the queue (REQUEUE_HOLD).
- After a requeue of its own it may start immediately, at its usual priority.
- A job whose batch process is killed by a signal ends, and so does one that is preempted where
  `PreemptMode` is not REQUEUE, and that has not been requeued by then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Continuation = Literal["chain", "requeue", "expedite"]
Version = tuple[int, int]
EXPEDITE_SINCE: Version = (25, 11)
ENABLED = "enable_expedited_requeue"
HOLD_S = 120
"""Slurm's default of cred_expire, during which a requeued job is held."""


@dataclass(frozen=True)
class ContinuationFacts:
    """What Slurm says that matters to the continuation of a run."""

    version: Version | None = None
    """The version of slurmctld; None: unknown."""
    client: Version | None = None
    """The version of sbatch on this machine; None: unknown."""
    is_expedite_enabled: bool = False
    """Whether SlurmctldParameters has enable_expedited_requeue."""
    preempt_mode: str | None = None
    """What a preemption does with a job of the run: "off", "requeue", "cancel" or another mode of
    Slurm's; None: unknown, as the QOS of the job decides."""
    most_jobs: int | None = None
    """The number of jobs that the user may have in the queue; None: unknown or unlimited."""
    hold_s: int = HOLD_S + 1
    """Seconds for which Slurm holds a requeued job that has no start time of its own."""
    is_elastic: bool = False
    """Whether the job goes on when it loses a node (`--no-kill`)."""


@dataclass(frozen=True)
class ContinuationChoice:
    """A way of continuing, and why it was picked."""

    how: Continuation
    reason: str
    """Why it was picked, and why the faster ones were not: the end of a sentence."""


def parse_version(text: str) -> Version | None:
    """Returns year and month of a version of Slurm, as of "slurm 25.11.2" or "25.11.0-0rc1"; None:
    there is none in the text."""
    found = re.search(r"(?<![\d.])(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def choose_continuation(facts: ContinuationFacts) -> ContinuationChoice:
    """Returns the fastest way that the site supports.

    An expedited requeue is the fastest after the loss of a node, as the run keeps its place. It is
    picked only where no preemption can end the job permanently. A queued successor starts within a
    second of the job's end, and follows whatever ended it. A requeue follows where no second job
    may be in the queue.
    """
    if not (missing := list(expedite_problems(facts))):
        return ContinuationChoice(
            "expedite", f"Slurm {_shown(facts.version)} has {ENABLED}: a lost node costs no place"
        )
    if facts.most_jobs is not None and facts.most_jobs < 2:
        return ContinuationChoice(
            "requeue",
            f"{missing[0]}, and you may have only {facts.most_jobs} job in the queue, so that no "
            "successor can be queued",
        )
    return ContinuationChoice("chain", f"{missing[0]}; a successor starts when the job has ended")


def expedite_problems(facts: ContinuationFacts) -> Iterator[str]:
    """Yields why a run cannot or should not rely on expedited requeues, the most important reason
    first."""
    since = _shown(EXPEDITE_SINCE)
    if facts.version is None:
        yield "the version of Slurm is unknown"
    elif facts.version < EXPEDITE_SINCE:
        yield f"Slurm {_shown(facts.version)} has no expedited requeue, which came with {since}"
    elif facts.client is not None and facts.client < EXPEDITE_SINCE:
        yield (
            f"sbatch {_shown(facts.client)} on this machine has no --requeue=expedite, which came "
            f"with {since}"
        )
    elif not facts.is_expedite_enabled:
        yield f"the site's SlurmctldParameters do not have {ENABLED}"
    elif facts.preempt_mode is None:
        yield "the QOS decides what a preemption does, which may end the job permanently"
    elif facts.preempt_mode not in ("off", "requeue"):
        yield (
            f"a preemption may end the job permanently (PreemptMode={facts.preempt_mode.upper()}), "
            "where a successor follows"
        )
    elif facts.is_elastic:
        yield (
            "the job continues when it loses a node (elastic), so Slurm does not requeue it then"
        )


def is_expedite_refused(facts: ContinuationFacts) -> bool:
    """Returns whether sbatch is certain to refuse an expedited requeue."""
    versions = [one for one in (facts.version, facts.client) if one is not None]
    is_old = any(one < EXPEDITE_SINCE for one in versions)
    return is_old or (facts.version is not None and not facts.is_expedite_enabled)


def _shown(version: Version | None) -> str:
    return "?" if version is None else f"{version[0]}.{version[1]:02}"
