"""Tells whether a record of a run has changed, by times and sizes of files."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from hpckit.rundir.directory import RunDir

RecordStamp: TypeAlias = tuple[tuple[int, int, int] | None, ...]
"""Of each file and folder: inode, time of change in nanoseconds, and size; None: there is none."""


def record_stamp(run: RunDir) -> RecordStamp:
    """Returns what changes when a record of the run does, or one is added to a folder of them."""
    files = (run.events, run.verdict, run.fork, run.lock, run.alerts)
    folders = (run.submissions, run.submitit, run.evaluations, run.path / "logs")
    stored = run.checkpoints / "runs"
    return tuple(map(_stamp, (*files, *folders, stored, *_evaluations(run))))


def _evaluations(run: RunDir) -> list[Path]:
    try:
        return sorted(run.evaluations.iterdir())
    except OSError:
        return []


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
