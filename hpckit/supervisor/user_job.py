"""Carries a run in a job that a person submitted with `sbatch slurm/train.sbatch` or salloc: it
composes and checks the spec as `launch.py` does, on the job's first node, and becomes the
supervisor.

A requeued job continues with the code and config that it started with, whatever has changed in the
project: nothing of the project is imported before the submission is known.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpckit.distribution import describe_missing
from hpckit.rundir.requeue_link import RequeueError, find_requeued_submission, supervisor_command
from hpckit.slurm.allocation import leave_submitting_job
from hpckit.submit.signal_hold import HELD

if TYPE_CHECKING:
    from hpckit.config.spec import RunSpec
    from hpckit.rundir.directory import RunDir

INTERACTIVE = "--interactive"
_REFUSED = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `python -m hpckit.supervisor.user_job [--interactive] OVERRIDES` inside a job and
    returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_interactive = words[:1] == [INTERACTIVE]
    overrides = words[1:] if is_interactive else words
    if not is_interactive:
        # signals before the supervisor exists stay pending for it, through exec
        signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    leave_submitting_job(os.environ)
    try:
        submission = find_requeued_submission(Path.cwd(), os.environ)
    except RequeueError as error:
        print(f"error: {error}", file=sys.stderr)
        return _REFUSED
    if submission is not None:
        return _become_supervisor(submission)
    return _begin_run(overrides, is_interactive)


def _become_supervisor(submission: Path) -> int:
    run = submission.parent.parent
    print(f"{run.name}  {run}", flush=True)
    command, env = supervisor_command(submission, os.environ)
    os.execve(command[0], command, env)


def _begin_run(overrides: Sequence[str], is_interactive: bool) -> int:
    from checkpointing import CheckpointError
    from hpckit.config.last_step import planned_steps
    from hpckit.config.spec_parser import SpecError
    from hpckit.rundir.code_snapshot.snapshot import CodeSnapshotError
    from hpckit.rundir.lock import RunHeldError
    from hpckit.submit.launch_command import refuse

    try:
        found = prepared(overrides, os.environ, is_interactive)
    except SpecError as error:
        return refuse(error.violations)
    except (RunHeldError, CodeSnapshotError, CheckpointError, OSError) as error:
        return refuse([str(error)])
    if found is None:
        return 0
    run, number, spec = found
    if not is_interactive:
        return _become_supervisor(run.submission(number))
    return _follow_supervisor(run, number, planned_steps(spec))


def _follow_supervisor(run: RunDir, number: int, steps: int | None) -> int:
    """Runs the supervisor as a child process, shows the events of the run until it ends, and
    returns its exit status. Signals do what they do to `launch.py`."""
    from rich.console import Console

    from hpckit.events.event_log import EventTail
    from hpckit.submit.run_follower import RunFollower
    from hpckit.system.child_processes import spawn

    print(f"{run.name}  {run.path}", flush=True)
    command, env = supervisor_command(run.submission(number), os.environ)
    run.logs.mkdir(exist_ok=True)
    tail = EventTail(run.events, from_end=True)
    follower = RunFollower(run, number, steps, Console(), tail, is_outlived=False)
    with follower.noting_signals():
        process = spawn(command, env, run.logs / "interactive.log")
        return follower.follow(lambda: process.poll() is None)


def prepared(
    overrides: Sequence[str], env: Mapping[str, str], is_interactive: bool
) -> tuple[RunDir, int, RunSpec] | None:
    """Returns the run for this job to carry, with its submission and spec, or None if the run is
    done.

    Raises:
        SpecError: the run cannot be carried, at all or by this job.
        RunHeldError: the run is already under way.
    """
    from hpckit.config.spec_parser import SpecError
    from hpckit.rundir.code_snapshot.snapshot import find_project
    from hpckit.submit import preparation
    from hpckit.submit.launch_command import pack
    from hpckit.supervisor.continuation.job_registration import mark_job, remember

    base, project = Path.cwd(), find_project(Path.cwd())
    words = [*of_the_job(overrides, env, is_interactive), *overrides]
    spec = _of_own_job(preparation.compose(words, base, project))
    if problems := job_problems(spec, env):
        raise SpecError(problems)
    wanted = preparation.request(spec, overrides, base, project)
    for line in preparation.check(wanted, pack).notes:
        print(f"note: {line}", file=sys.stderr)
    title = f"job {env['SLURM_JOB_ID']}"
    options = preparation.CommandOptions(title, is_queue_checked=False)
    run, (number,) = wanted.run, preparation.prepare([wanted], options)
    if number is None:
        print(f"{run.name} is done; nothing to do")
        return None
    mark_job(run, number, env)
    remember(run, number, base, env)
    return run, number, spec


def of_the_job(overrides: Sequence[str], env: Mapping[str, str], is_interactive: bool) -> list[str]:
    """Returns the job's properties as overrides, without those that the user's overrides set."""
    from hpckit.config.renamed_keys import current_key
    from hpckit.submit.program.program_command import split

    facts = {
        "cluster": "slurm",
        "launch.nodes": env.get("SLURM_JOB_NUM_NODES"),
        "launch.nproc_per_node": env.get("SLURM_GPUS_ON_NODE"),
        "launch.continuation": "none" if is_interactive else "requeue",
    }
    given = {current_key(word.lstrip("+").partition("=")[0]) for word in split(overrides)[0]}
    return [f"{key}={value}" for key, value in facts.items() if value and key not in given]


def _of_own_job(spec: RunSpec) -> RunSpec:
    """Returns the spec with the continuation that `auto` stands for here: this job already
    exists, and its own options say how fast Slurm requeues it."""
    if spec.launch.continuation != "auto":
        return spec
    return replace(spec, launch=replace(spec.launch, continuation="requeue"))


def job_problems(spec: RunSpec, env: Mapping[str, str]) -> list[str]:
    """Returns why this job cannot carry a run of `spec`."""
    from hpckit.supervisor.continuation.resize import too_few

    if "SLURM_JOB_ID" not in env:
        return [
            "this process is not in a Slurm job: use sbatch slurm/train.sbatch ..., or launch.py"
        ]
    if spec.cluster.kind != "slurm":
        return [f"cluster: a Slurm job cannot run a spec of kind {spec.cluster.kind}"]
    return too_few(spec, int(env.get("SLURM_JOB_NUM_NODES", "1")))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as error:
        if (said := describe_missing(error)) is None:
            raise
        sys.exit(f"error: {said}; or set HPCKIT_PYTHON to another Python")
