"""Registration of a job that a person submitted with the run that it carries: requeue links for
when the job is requeued, and the run's name in Slurm's queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.rundir.directory import RunDir
from hpckit.rundir.requeue_link import write_requeue_links
from hpckit.slurm.scontrol import run_scontrol

_TIMEOUT_S = 20.0


def remember(run: RunDir, submission: int, base: Path, env: Mapping[str, str]) -> None:
    """Writes the requeue links by which the job finds the submission when it is requeued. If it
    cannot, it prints a message and emits a `degraded` event."""
    if problems := write_requeue_links(run.submission(submission), base, env):
        what = f"a requeue of this job would read config and code again: {'; '.join(problems)}"
        _report(run, submission, DegradedSubject.REQUEUE_LINK, what)


def take_name(run: RunDir, submission: int, env: Mapping[str, str]) -> None:
    """Gives the job the name of the run, by which the run's commands and its other jobs find it. If
    it cannot, it prints a message and emits a `degraded` event."""
    job = env["SLURM_JOB_ID"]
    problem = run_scontrol(["update", f"JobId={job}", f"JobName={run.name}"], _TIMEOUT_S)
    if problem is not None:
        what = f"hpckit status, why and cancel cannot find job {job}, because it has another name"
        _report(run, submission, DegradedSubject.JOB_NAME, f"{what}: {problem}")


def _report(run: RunDir, submission: int, subject: DegradedSubject, what: str) -> None:
    print(what, flush=True)
    with EventLog(run.events, submission=submission) as events:
        events.emit(Degraded(subject=subject, what=what))
