"""Whether a job was told to leave because its time limit comes, or because it is preempted.

By its signal alone that cannot be told. Slurm knows: of a preemption it notes the time, and else
the end of the job is near. The limit may have been changed since the job began.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time

from hpckit.config.spec import ClusterSpec
from hpckit.slurm.allocation import Allocation
from hpckit.slurm.scontrol import field, show_job

log = logging.getLogger(__name__)

_PATIENCE_S = 3.0  # the job is about to end, and nobody hears its agents meanwhile
EARLY_S = 90.0
"""Seconds before the notice in which Slurm may give it: it looks each half minute, and says that
it may be a minute early."""


def is_time_up(job: Allocation | None, cluster: ClusterSpec) -> bool:
    """Of a job that was told to leave, whether it is for its time; None: it is none of Slurm's."""
    if job is None or cluster.slurm is None:
        return False
    notice_s = cluster.slurm.notice_s
    try:
        text = show_job(job.job, _PATIENCE_S)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("when job %s has to end is not known: %s", job, error)
        return is_near(os.environ.get("SLURM_JOB_END_TIME"), notice_s, time.time())
    return shows_time_limit(text, notice_s, time.time())


def shows_time_limit(text: str, notice_s: float, now: float) -> bool:
    """Of what `scontrol show job` says, with times in seconds since the epoch, as `now`.

    A preemption moves the end of the job, too.

    Args:
        notice_s: seconds before the end at which Slurm is to tell it.
    """
    if field(text, "PreemptTime") not in (None, "None"):
        return False
    return field(text, "Reason") == "TimeLimit" or is_near(field(text, "EndTime"), notice_s, now)


def is_near(end: str | None, notice_s: float, now: float) -> bool:
    """Whether the end, in seconds since the epoch, is near enough for the notice of it."""
    return end is not None and end.isdigit() and int(end) - now <= notice_s + EARLY_S
