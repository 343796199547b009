"""Starts a prepared submission, on Slurm or on this machine, and tells the user what was
started."""

from __future__ import annotations

import gc
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any

from hpckit.agent.verdict_record import REFUSED, VerdictKind
from hpckit.config.last_step import planned_steps
from hpckit.config.spec import RunSpec
from hpckit.config.spec_error import NoAnswerError
from hpckit.config.spec_parser import SpecError
from hpckit.rundir.directory import RunDir

if TYPE_CHECKING:
    from rich.console import Console

    from hpckit.events.event_validation import ValidatedEvents
    from hpckit.submit.exclusion.suspect_exclusion import SuspectExclusion


def start(run: RunDir, spec: RunSpec, number: int, detach: bool) -> int:
    """Starts a prepared submission and returns the exit status. On this machine, it follows the run
    to its end unless `detach` is set.

    Raises:
        SpecError: Slurm refuses the job.
    """
    if spec.cluster.kind == "slurm":
        print_job(run, start_silently(run, spec, number))
        return 0
    return _start_and_follow(run, number, planned_steps(spec), detach)


def start_silently(run: RunDir, spec: RunSpec, number: int) -> str:
    """Starts a prepared submission and returns the job's number, as in `start_record`.

    Raises:
        SpecError: Slurm refuses the job.
        NoAnswerError: Slurm does not answer.
    """
    from hpckit.slurm.queued_jobs import unfinished
    from hpckit.slurm.squeue import QueueError
    from hpckit.submit.batch_script import of_run, script
    from hpckit.submit.exclusion.suspect_exclusion import exclude_suspects
    from hpckit.submit.job_submission import SubmitError, submit, submit_job

    if spec.cluster.kind != "slurm":
        return submit(run, number).job_id
    try:
        others = tuple(unfinished(run))  # one that is ending, or was submitted at the same time
    except QueueError as error:
        raise NoAnswerError([f"Slurm does not answer: {error}; nothing is submitted"]) from error
    suspects = exclude_suspects(spec, lambda hosts: script(spec, of_run(run, number, (), hosts)))
    print_notes(suspects)
    try:
        job = submit_job(run, spec, number, others, suspects.hosts).job_id
        record_exclusion(run, number, job, suspects)
        return job
    except SubmitError as error:
        record_refusal(run, number, error)
        raise SpecError(sbatch_problems(error)) from error


def print_notes(suspects: SuspectExclusion) -> None:
    """Prints on standard error which suspects a job does without, and why."""
    for line in suspects.notes:
        print(f"note: {line}", file=sys.stderr)


def record_exclusion(run: RunDir, submission: int, job: str, suspects: SuspectExclusion) -> None:
    """Records which suspects a job does without, for the supervisor and for `hpckit why`."""
    from hpckit.events.event_log import EventLog
    from hpckit.events.schema import NodesExcluded

    if suspects.hosts:
        with EventLog(run.events, submission=submission) as events:
            events.emit(NodesExcluded(job=job, hosts=list(suspects.hosts)))


def sbatch_problems(error: RuntimeError) -> list[str]:
    """Returns the lines of an error of `sbatch` as problems of the command."""
    return [f"sbatch: {line}" for line in str(error).splitlines()]


def record_refusal(run: RunDir, submission: int, error: RuntimeError) -> None:
    """Records what `sbatch` printed, for `hpckit why`."""
    from hpckit.events.event_log import EventLog
    from hpckit.events.schema import JobRefused

    with EventLog(run.events, submission=submission) as events:
        events.emit(JobRefused(error=" ".join(str(error).split())))


def _start_and_follow(run: RunDir, number: int, steps: int | None, detach: bool) -> int:
    """Starts a prepared submission on this machine, and follows the run unless `detach` is set."""
    from rich.console import Console

    from hpckit.events.event_log import EventTail
    from hpckit.submit.job_submission import submit
    from hpckit.submit.run_follower import RunFollower

    console = Console()
    console.print(f"[bold]{run.name}[/]  {run.path}", highlight=False, soft_wrap=True)
    follower = RunFollower(run, number, steps, console, EventTail(run.events, from_end=True))
    with follower.noting_signals():
        job = submit(run, number)
        if detach:
            console.print(f"job {job.job_id} of submitit's local executor", highlight=False)
            return 0
        gc.enable()  # launch.py has disabled it, and following may take weeks
        status = follower.follow(lambda: not job.done())
    if status != REFUSED:
        show_end(run)
    return status


def print_job(run: RunDir, job: str) -> None:
    """Prints what was started and which commands to use next."""
    print(f"{run.name}  {run.path}\njob {job}")
    path = shlex.quote(str(run.path))
    for command in (f"status {path}", f"logs {path} -f", f"why {path}"):
        print(f"    hpckit {command}")


def start_record(
    run: RunDir, submission: int | None, job: str | None, **more: Any
) -> dict[str, Any]:
    """Returns the record of one run that was started, as a JSON object for scripts.

    Args:
        submission: the number of the submission. None: the run is done, and nothing was started.
        job: Slurm's number of the job; for a run on this machine, its process id.
    """
    return {"run": run.name, "path": str(run.path), **more, "submission": submission, "job": job}


def print_record(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))


def show_end(run: RunDir) -> None:
    """Prints the summary of a run and the commands that show more."""
    from rich.console import Console

    from hpckit.report.overview import read_verdict

    console, path = Console(), shlex.quote(str(run.path))
    has_steps = show_report(run, console)
    verdict, _ = read_verdict(run)
    commands = {"more": f"hpckit report {path}"} if has_steps else {}
    if verdict is not None and verdict["kind"] not in (VerdictKind.DONE, VerdictKind.STOPPED):
        commands |= {"why": f"hpckit why {path}"}
        if verdict.get("error"):
            commands |= {"error": f"hpckit logs {path} --first-error"}
    for name, command in commands.items():
        console.print(f"[bold]{name:<12}[/] {command}", highlight=False, soft_wrap=True)


def show_report(run: RunDir, console: Console, events: ValidatedEvents | None = None) -> bool:
    """Prints the summary of a run as far as possible, and returns whether there was anything to
    print.

    Args:
        events: the run's events, if they were read already.
    """
    from hpckit.report.terminal.run_summary import show

    try:
        return show(run, console, events)
    except OSError as error:
        print(f"the report is incomplete: {error}", file=sys.stderr)
        return False
