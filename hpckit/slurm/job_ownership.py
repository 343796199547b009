"""Decides whether a job of Slurm's queue carries a run.

A run is its directory. The job says which one in its comment, and its batch script is in there. The
name of a job proves nothing: two directories may have runs of one name, and the user or a plug-in
of the site may rename jobs. It is used for jobs of earlier releases, which have no such comment,
together with a number that the run directory records. The number alone is no proof either, as a
reinstalled cluster counts from 1 again.
"""

from __future__ import annotations

import re
from pathlib import Path

from hpckit.rundir.directory import RunDir

_COMMENT = "hpckit:"
_SWEEP = re.compile(r"-sweep-\d+")  # follows the runs' name in the name of an array


def job_comment(folder: Path) -> str:
    """Returns the comment of the jobs of a run directory, or of the folder of a sweep."""
    return f"{_COMMENT}{folder}"


def commented_folder(comment: str) -> Path | None:
    """Returns the folder that a job's comment names, or None."""
    _, sign, folder = comment.partition(_COMMENT)
    return Path(folder) if sign and folder.startswith("/") else None


def is_job_of_run(
    run: RunDir, number: str, name: str, comment: str, command: str, *, is_recorded: bool
) -> bool:
    """Returns whether a job carries the run.

    Args:
        number, name, comment, command: of the job, as squeue reports them.
        is_recorded: whether the run directory records the number.
    """
    for folder in (commented_folder(comment), _submitting_folder(command)):
        if folder is None:
            continue
        if _is_run_or_its_sweep(folder, number, run):
            return True
        if folder.name == run.name and not folder.exists():
            continue  # this machine may know the directory by another path
        if not _is_sweep_of(folder.name, run):
            return False  # another run
    return is_recorded and is_name_of(number, name, run)


def is_name_of(number: str, name: str, run: RunDir) -> bool:
    """Returns whether a job of the run with this number may have this name, if nobody has renamed
    it."""
    return _is_sweep_of(name, run) if "_" in number else name == run.name


def _is_sweep_of(name: str, run: RunDir) -> bool:
    title = run.name.rpartition("-")[0]
    return name.startswith(title) and bool(_SWEEP.fullmatch(name.removeprefix(title)))


def _submitting_folder(command: str) -> Path | None:
    """Returns the run directory, or the folder of a sweep, in which the batch script lies."""
    folder = Path(command).parent
    return folder.parent if folder.is_absolute() and folder.name == "submitit" else None


def _is_run_or_its_sweep(folder: Path, number: str, run: RunDir) -> bool:
    if _is_same(folder, run.path):
        return True
    task = number.partition("_")[2]
    return task.isdigit() and _is_same(folder / "runs" / task, run.path)


def _is_same(path: Path, other: Path) -> bool:
    """Returns whether both are one folder, which may have several paths."""
    if path == other:
        return True
    try:
        return path.samefile(other)
    except OSError:
        return False
