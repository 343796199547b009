"""What a job that somebody else submitted says of the run that it carries: to itself, for when it
is requeued, and to Slurm, for whoever looks at the queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.rundir.requeue_link import write_requeue_links
from hpckit.slurm.scontrol import run_scontrol

_PATIENCE_S = 20.0


def remember(run: RunDir, submission: int, base: Path, env: Mapping[str, str]) -> None:
    """Have the job find the submission again when it is requeued; aloud if it cannot."""
    if refused := write_requeue_links(run.submission(submission), base, env):
        what = f"a requeue of this job reads config and code again: {'; '.join(refused)}"
        _say(run, submission, what)


def take_name(run: RunDir, submission: int, env: Mapping[str, str]) -> None:
    """Have the job be called as the run, by which its commands and its other jobs know it; aloud if
    it cannot."""
    job = env["SLURM_JOB_ID"]
    said = run_scontrol(["update", f"JobId={job}", f"JobName={run.name}"], _PATIENCE_S)
    if said is not None:
        what = f"status, why and cancel do not see job {job}, whose name is not the run's: {said}"
        _say(run, submission, what)


def _say(run: RunDir, submission: int, what: str) -> None:
    print(what, flush=True)
    with EventLog(run.events, submission=submission) as events:
        events.emit("degraded", what=what)
