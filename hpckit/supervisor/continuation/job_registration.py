"""Registration of a job that a person submitted with the run that it carries: requeue links for
when the job is requeued, and the run's name and directory in Slurm's queue."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from hpckit.events.event_log import EventLog
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.rundir.directory import RunDir
from hpckit.rundir.requeue_link import write_requeue_links
from hpckit.slurm.job_ownership import commented_folder, job_comment
from hpckit.slurm.scontrol import field, run_scontrol, show_job

_TIMEOUT_S = 20.0


def remember(run: RunDir, submission: int, base: Path, env: Mapping[str, str]) -> None:
    """Writes the requeue links by which the job finds the submission when it is requeued. If it
    cannot, it prints a message and emits a `degraded` event."""
    if problems := write_requeue_links(run.submission(submission), base, env):
        what = f"a requeue of this job would read config and code again: {'; '.join(problems)}"
        _report(run, submission, DegradedSubject.REQUEUE_LINK, what)


def mark_job(run: RunDir, submission: int, env: Mapping[str, str]) -> None:
    """Gives the job the name of the run, for people, and a comment with its directory, by which the
    run's commands find it. A comment of the user's own stays. If neither is possible, it prints a
    message and emits a `degraded` event."""
    job = env["SLURM_JOB_ID"]
    name = run_scontrol(["update", f"JobId={job}", f"JobName={run.name}"], _TIMEOUT_S)
    comment = _set_comment(run, job)
    if name is not None and comment is not None:
        what = f"hpckit status, why and cancel cannot find job {job}, because it has another name"
        _report(run, submission, DegradedSubject.JOB_NAME, f"{what}: {name}; {comment}")


def _set_comment(run: RunDir, job: str) -> str | None:
    """Returns why the job has no comment that names the run directory, or None."""
    try:
        given = field(show_job(job, _TIMEOUT_S), "Comment")
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if given not in (None, "(null)") and commented_folder(given) is None:
        return "it has a comment of its own"
    words = ["update", f"JobId={job}", f"Comment={job_comment(run.path)}"]
    return run_scontrol(words, _TIMEOUT_S)


def _report(run: RunDir, submission: int, subject: DegradedSubject, what: str) -> None:
    print(what, flush=True)
    with EventLog(run.events, submission=submission) as events:
        events.emit(Degraded(subject=subject, what=what))
