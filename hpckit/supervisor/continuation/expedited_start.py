"""When a requeued job begins: not in the two minutes that Slurm holds it back.

Slurm waits so long (cred_expire of AuthInfo, 120 s) unless the job has a time to begin that is yet
to come when the last of it has ended. That time can be set once the job is requeued, while this
process, the last of it, is still there. (Seen with Slurm 22.05: batch_requeue_fini() of
slurmctld/job_mgr.c.)
"""

from __future__ import annotations

import logging
import subprocess
import time

from hpckit.events.event_log import EventLog
from hpckit.slurm.scontrol import run_scontrol

log = logging.getLogger(__name__)

SOON_S = 5
"""Seconds in which the job has to have ended, once this process does: else it is held back."""
EPILOG_S = 20
"""The same where the site has a program run after each job."""
_AGAIN_S = 0.3
_QUERY_S = 10.0


def expedite_start(job: str, delay_s: int, events: EventLog, within_s: float) -> None:
    """Have a job that was requeued, of which this process is the last, begin a few seconds after
    it. It ends soon after this returns.

    Args:
        delay_s: of `delay`, asked for before: Slurm may end this process's children by now.
        within_s: the longest that it may take, about.
    """
    words = ["update", f"JobId={job}", f"StartTime=now+{delay_s}"]
    deadline = time.monotonic() + within_s
    while (said := run_scontrol(words, _QUERY_S)) is not None and time.monotonic() < deadline:
        time.sleep(_AGAIN_S)
    if said is None:
        log.info("job %s may begin in %d s", job, delay_s)
        events.emit("begins_soon", job=job, seconds=delay_s)
        return
    what = f"job {job} is held back by Slurm, for two minutes unless the site says less: {said}"
    log.warning(what)
    events.emit("degraded", what=what)


def delay(told: str | None) -> int:
    """Seconds until the job may begin, from what `scontrol show config` says. Pure.

    Args:
        told: None: it says nothing.
    """
    values = dict(line.split("=", 1) for line in (told or "").splitlines() if "=" in line)
    found = {key.strip(): value.strip() for key, value in values.items()}
    programs = {found.get(key) for key in ("Epilog", "EpilogSlurmctld")}
    return SOON_S if programs == {"(null)"} else EPILOG_S


def config() -> str | None:
    """What `scontrol show config` says; None: nothing."""
    command = ["scontrol", "show", "config"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_QUERY_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("Slurm does not tell how it is set up: %s", error)
        return None
