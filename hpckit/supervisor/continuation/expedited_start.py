"""Sets an early start time of a requeued job, which Slurm otherwise holds back for two minutes.

Slurm waits so long (cred_expire of AuthInfo, 120 s) unless the job has a start time that is still
in the future when the last of its processes has ended. That time can be set once the job is
requeued, while this process, the last of it, still runs. (Seen with Slurm 22.05:
batch_requeue_fini() of slurmctld/job_mgr.c.)
"""

from __future__ import annotations

import logging
import subprocess
import time

from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject, StartExpedited
from hpckit.slurm.scontrol import run_scontrol
from hpckit.slurm.slurm_query import query

log = logging.getLogger(__name__)

SOON_S = 5
"""Seconds after this process's end in which the job must have ended; otherwise it is held back."""
EPILOG_S = 20
"""As `SOON_S`, where the site runs an epilog after each job."""
_RETRY_S = 0.3
_QUERY_S = 10.0


def expedite_start(job: str, delay_s: int, events: EventLog, within_s: float) -> None:
    """Sets the start time of a requeued job to a few seconds after the end of this process, the
    last one of the job. This process has to end soon after the call.

    Args:
        delay_s: the result of `delay`, determined before: Slurm may end this process's children by
            now.
        within_s: about the longest time that the call may take.
    """
    words = ["update", f"JobId={job}", f"StartTime=now+{delay_s}"]
    deadline = time.monotonic() + within_s
    while (problem := run_scontrol(words, _QUERY_S)) is not None and time.monotonic() < deadline:
        time.sleep(_RETRY_S)
    if problem is None:
        log.info("job %s may start in %d s", job, delay_s)
        events.emit(StartExpedited(job=job, seconds=delay_s))
        return
    what = (
        f"job {job} waits because Slurm holds a requeued job, for two minutes by default: {problem}"
    )
    log.warning(what)
    events.emit(Degraded(subject=DegradedSubject.EXPEDITED_START, what=what))


def delay(text: str | None) -> int:
    """Returns the seconds until the job may start, from the output of `scontrol show config`. Pure.

    Args:
        text: the output. None: there is none.
    """
    values = dict(line.split("=", 1) for line in (text or "").splitlines() if "=" in line)
    found = {key.strip(): value.strip() for key, value in values.items()}
    programs = {found.get(key) for key in ("Epilog", "EpilogSlurmctld")}
    return SOON_S if programs == {"(null)"} else EPILOG_S


def config() -> str | None:
    """Returns the output of `scontrol show config`, or None if the command fails."""
    try:
        return query(["scontrol", "show", "config"], _QUERY_S)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot read the configuration of Slurm: %s", error)
        return None
