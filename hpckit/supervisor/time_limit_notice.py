"""Tells whether a job was signalled because its time limit is near or because it is preempted.

The signal alone does not tell. Slurm knows: it notes the time of a preemption, and otherwise the
end of the job is near. The limit may have been changed since the job started.
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

_TIMEOUT_S = 3.0  # the job is about to end, and its agents are not heard meanwhile
EARLY_S = 90.0
"""Seconds by which Slurm may signal before the configured notice: it checks every half minute, and
documents that the signal may come up to a minute early."""


def is_time_up(job: Allocation | None, cluster: ClusterSpec) -> bool:
    """Whether a signalled job has to leave because of its time limit; False outside of Slurm."""
    if job is None or cluster.slurm is None:
        return False
    notice_s = cluster.slurm.notice_s
    try:
        text = show_job(job.job, _TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("when job %s has to end is not known: %s", job, error)
        return is_near(os.environ.get("SLURM_JOB_END_TIME"), notice_s, time.time())
    return shows_time_limit(text, notice_s, time.time())


def shows_time_limit(text: str, notice_s: float, now: float) -> bool:
    """As `is_time_up`, from the output of `scontrol show job`, with times in seconds since the
    epoch, as `now`.

    A preemption also moves the end of the job.

    Args:
        notice_s: seconds before the time limit at which Slurm is to signal the job.
    """
    if field(text, "PreemptTime") not in (None, "None"):
        return False
    return field(text, "Reason") == "TimeLimit" or is_near(field(text, "EndTime"), notice_s, now)


def is_near(end: str | None, notice_s: float, now: float) -> bool:
    """Whether the end, in seconds since the epoch, is near enough for the notice."""
    return end is not None and end.isdigit() and int(end) - now <= notice_s + EARLY_S
