"""`launch.py -m`: checks all runs, submits them as one job array, and prints where each of them
is."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import Any

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import EventLog
from hpckit.events.schema import TaskQueued
from hpckit.rundir.code_snapshot.snapshot import Project, find_project
from hpckit.rundir.directory import RunDir
from hpckit.slurm.job_placement import start_time
from hpckit.slurm.sbatch_variables import with_sbatch_variables
from hpckit.submit.arrays import sweep
from hpckit.submit.arrays.sweep import SweepTask
from hpckit.submit.batch_script import of_run, passed_variables, script
from hpckit.submit.continuation.continuation_facts import with_continuation
from hpckit.submit.exclusion.suspect_exclusion import exclude_suspects
from hpckit.submit.launch_command import LaunchCommand, pack
from hpckit.submit.preflight.checks import preflight
from hpckit.submit.preparation import (
    CommandOptions,
    SubmissionRequest,
    compose,
    is_done,
    prepare,
)
from hpckit.submit.program.program_command import SEPARATOR, split
from hpckit.submit.submission_start import (
    print_job,
    print_notes,
    print_record,
    record_exclusion,
    record_refusal,
    sbatch_problems,
    start_record,
    start_silently,
)


def run_sweep(command: LaunchCommand) -> int:
    """Carries out the command for every run, and returns the exit status.

    Raises:
        SpecError: one of the runs cannot be used, or Slurm refuses them; none is submitted.
        RunHeldError: one of the runs is under way; none is submitted.
    """
    gc.enable()  # a thousand configs would leave cycles behind
    base = Path.cwd()
    if command.cfg or command.fake_world:
        flag = "--cfg" if command.cfg else "--fake-world"
        raise SpecError([f"{flag}: shows one run; leave -m out"])
    project = find_project(base)
    typed, words_of_program = split(command.overrides)
    program = [] if words_of_program is None else [SEPARATOR, *words_of_program]
    notes: dict[str, None] = {}

    def compose_task(words: Sequence[str]) -> RunSpec:
        composed = compose([*words, *program], base, project)
        spec, of_shell = with_sbatch_variables(composed, os.environ)
        spec, of_site = with_continuation(spec)
        notes.update(dict.fromkeys([*of_shell, *of_site]))
        return spec

    tasks = sweep.plan(
        typed,
        compose_task,
        partial(_check, project, command.dry_run),
        base,
    )
    for line in notes:
        print(f"note: {line}", file=sys.stderr)
    if command.dry_run:
        print(_description(tasks, base))
        return 0
    requests = [
        SubmissionRequest(task.run, task.spec, [*task.overrides, *program], project, command.fresh)
        for task in tasks
    ]
    title = f"launch.py -m {shlex.join(command.overrides)}"
    found = zip(tasks, prepare(requests, CommandOptions(title, say=command.say)), strict=True)
    numbers = list(found)
    for task, number in numbers:
        if number is None:
            command.say(f"{task.run.name} is done  {task.differs}")
    prepared = [(task, number) for task, number in numbers if number is not None]
    jobs = _start(prepared, base)
    if command.json:
        records = [_record_of(task, number, jobs.get(task.run.path)) for task, number in numbers]
        print_record({"runs": records})
    elif jobs:
        _print_jobs([task for task, _ in prepared], jobs)
    else:
        print("all runs are done; nothing to do (--fresh starts a new run)")
    return 0


def _check(project: Project, dry_run: bool, spec: RunSpec, run: RunDir) -> list[str]:
    if spec.cluster.kind != "slurm":
        return ["-m: is for a cluster of kind slurm; here, start the runs one by one"]
    found = preflight(spec, run, project, None if dry_run else pack)
    for line in found.notes:
        print(f"note: {run.name}: {line}", file=sys.stderr)
    return found.problems


def _description(tasks: Sequence[SweepTask], base: Path) -> str:
    left = [task for task in tasks if not is_done(task.run)]
    lines = [f"# run         {task.run.path}  {task.differs}" for task in left]
    lines += [
        f"# done        {task.run.path}  {task.differs}" for task in tasks if task not in left
    ]
    script_without: Callable[[tuple[str, ...]], str]
    match left:
        case []:
            return "\n".join(lines)
        case [task]:
            number = max(task.run.submission_numbers(), default=0) + 1
            script_without = partial(_script_of_run, task, number)
        case [task, *_]:
            folder = sweep.next_folder(task.spec, base)
            script_without = partial(_script_without, task.spec, folder, len(left))
    suspects = exclude_suspects(task.spec, script_without)
    lines += [f"# suspects    {line}" for line in suspects.notes]
    text = script_without(suspects.hosts)
    start = start_time(text, passed_variables(left[0].spec))
    return "\n".join([*lines, f"# start       {start}", "", text])


def _record_of(task: SweepTask, number: int | None, job: str | None) -> dict[str, Any]:
    return start_record(task.run, number, job, differs=task.differs)


def _start(prepared: Sequence[tuple[SweepTask, int]], base: Path) -> dict[Path, str]:
    """Submits the runs, several of them as one array, and returns their jobs by run directory."""
    match prepared:
        case []:
            return {}
        case [(task, number)]:
            return {task.run.path: start_silently(task.run, task.spec, number)}
        case _:
            return _submit_all(prepared, base)


def _print_jobs(tasks: Sequence[SweepTask], jobs: dict[Path, str]) -> None:
    """Prints what was started and which commands to use next."""
    if len(tasks) == 1:
        print_job(tasks[0].run, jobs[tasks[0].run.path])
        return
    for task in tasks:
        print(f"job {jobs[task.run.path]}  {task.run.path}  {task.differs}")
    print(f"    squeue --job {next(iter(jobs.values())).partition('_')[0]}")


def _script_of_run(task: SweepTask, number: int, hosts: tuple[str, ...]) -> str:
    return script(task.spec, of_run(task.run, number, (), hosts))


def _script_without(spec: RunSpec, folder: Path, tasks: int, hosts: tuple[str, ...]) -> str:
    return script(spec, replace(sweep.place(folder), exclude=hosts), tasks)


def _submit_all(prepared: Sequence[tuple[SweepTask, int]], base: Path) -> dict[Path, str]:
    """Submits the runs as one array. Raises SpecError if Slurm refuses it."""
    from hpckit.submit.job_submission import SubmitError, submit_array

    head = prepared[0][0].spec
    folder = sweep.next_folder(head, base)
    sweep.write_folder(folder, prepared)
    runs = [(task.run, number) for task, number in prepared]
    suspects = exclude_suspects(head, partial(_script_without, head, folder, len(runs)))
    print_notes(suspects)
    try:
        jobs = submit_array(replace(sweep.place(folder), exclude=suspects.hosts), head, runs)
    except SubmitError as error:
        rmtree(folder)  # it holds links, and submitit's files of a job that does not exist
        for run, number in runs:
            record_refusal(run, number, error)
        raise SpecError(sbatch_problems(error)) from error
    for (task, number), job in zip(prepared, jobs, strict=True):
        with EventLog(task.run.events, submission=number) as events:
            events.emit(TaskQueued(job=job.job_id))  # the array has another name than the run
        record_exclusion(task.run, number, job.job_id, suspects)
    pairs = zip(prepared, jobs, strict=True)
    return {task.run.path: job.job_id for (task, _), job in pairs}
