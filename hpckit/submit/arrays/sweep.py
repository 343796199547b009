"""Sweeps (`launch.py -m`): several runs as the tasks of one job array, each of which continues on
its own.

    <root>/<name>-sweep-001/
        sweep.json                    the runs, with their overrides
        runs/0 runs/1 ... code/0 ...  links to each task's run directory and code snapshot
        submitit/                     submitit's own files
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.rundir.directory import RunDir, run_directory
from hpckit.slurm.job_ownership import job_comment
from hpckit.submit.arrays.override_product import multiply, varying
from hpckit.submit.batch_script import BatchJob
from hpckit.system.atomic_files import write_json

RECORD = "sweep.json"


@dataclass(frozen=True)
class SweepTask:
    """One run of a sweep."""

    overrides: list[str]
    differs: str
    """The overrides that other runs of the sweep do not have."""
    spec: RunSpec
    run: RunDir


def plan(
    overrides: Sequence[str],
    compose: Callable[[Sequence[str]], RunSpec],
    check: Callable[[RunSpec, RunDir], list[str]],
    base: Path,
) -> list[SweepTask]:
    """Returns the runs that `overrides` expand to, after checking all of them.

    Args:
        compose: returns the spec of one run; raises SpecError.
        check: returns the problems of one run on this machine.

    Raises:
        SpecError: one of them cannot be run, or not in one array with the others.
    """
    tasks: list[SweepTask] = []
    problems: dict[str, list[str]] = {}
    runs = multiply(overrides)
    for words in runs:
        differs = varying(words, overrides)
        try:
            spec = compose(words)
            task = SweepTask(words, differs, spec, run_directory(spec, base))
            tasks.append(task)
            found = check(spec, task.run)
        except SpecError as error:
            found = error.violations
        for line in found:
            problems.setdefault(line, []).append(differs)
    found = [_with_affected_runs(line, whose, len(runs)) for line, whose in problems.items()]
    found = found or [*_duplicate_runs(tasks), *_differing_requests(tasks)]
    if found:
        raise SpecError(found)
    return tasks


def place(folder: Path) -> BatchJob:
    """Returns the job array of the sweep in `folder`, with paths that each task resolves to its
    own."""
    return BatchJob(
        name=folder.name,
        folder=folder / "submitit",
        output=folder / "runs" / "%a" / "logs" / "batch-%j.log",
        code=f'{shlex.quote(str(folder / "code"))}/"$SLURM_ARRAY_TASK_ID"',
        comment=job_comment(folder),
    )


def next_folder(spec: RunSpec, base: Path) -> Path:
    """Returns the first folder name that is free."""
    root, number = (base / spec.root).resolve(), 1
    while (folder := root / f"{spec.name}-sweep-{number:03d}").exists():
        number += 1
    return folder


def write_folder(folder: Path, tasks: Sequence[tuple[SweepTask, int]]) -> None:
    """Writes the folder of a sweep.

    Raises:
        OSError: the folder cannot be written, or another process made it first.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    for name in ("runs", "code"):
        (folder / name).mkdir()
    for index, (task, number) in enumerate(tasks):
        (folder / "runs" / str(index)).symlink_to(task.run.path)
        (folder / "code" / str(index)).symlink_to(task.run.code(number))
    runs = [{"run": str(t.run.path), "submission": n, "overrides": t.overrides} for t, n in tasks]
    write_json(folder / RECORD, {"runs": runs})


def _with_affected_runs(line: str, whose: Sequence[str], total: int) -> str:
    if len(whose) == total:
        return line
    more = f" and {len(whose) - 1} more" if len(whose) > 1 else ""
    return f"{line} (with {whose[0]}{more})"


def _duplicate_runs(tasks: Sequence[SweepTask]) -> list[str]:
    """Returns the problem of runs with the same directory, as they differ in nothing that
    identifies a run."""
    first: dict[Path, SweepTask] = {}
    found = []
    for task in tasks:
        other = first.setdefault(task.run.path, task)
        if other is not task:
            found.append(
                f"-m: {other.differs} and {task.differs} are the same run, {task.run.name}; "
                "sweep over what changes the experiment"
            )
    return found


def _differing_requests(tasks: Sequence[SweepTask]) -> list[str]:
    """Returns the problem of runs that request different resources than the first, as all tasks of
    an array get the same."""
    head = tasks[0]
    return [
        f"-m: {head.differs} and {task.differs} differ in cluster or launch, "
        "and the tasks of one job array do not; start them one by one"
        for task in tasks[1:]
        if (task.spec.cluster, task.spec.launch) != (head.spec.cluster, head.spec.launch)
    ]
