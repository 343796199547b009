"""The record of a run that is a fork: the run and the checkpoint that it began with."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json, write_json


@dataclass(frozen=True)
class ForkRecord:
    """Where a run was forked from."""

    run: str
    """The name of the run in the store."""
    path: str
    """Its run directory at that time."""
    store: str
    """The store that has the checkpoints of both."""
    step: int
    """The step of the checkpoint."""
    id: str
    """Its id."""

    def __str__(self) -> str:
        return f"step {self.step:,} of {self.run} (checkpoint {self.id})"


def write_fork(run: RunDir, record: ForkRecord) -> None:
    """Writes that `run` is a fork, before it has its first checkpoint."""
    run.path.mkdir(parents=True, exist_ok=True)
    write_json(run.fork, asdict(record))


def read_fork(run: RunDir | Path) -> ForkRecord | None:
    """Returns the record of a run, or None if it is no fork or the record is damaged."""
    path = run.fork if isinstance(run, RunDir) else RunDir(run).fork
    found: Any = read_json(path)
    try:
        return ForkRecord(**found) if isinstance(found, dict) else None
    except TypeError:
        return None
