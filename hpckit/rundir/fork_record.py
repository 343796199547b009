"""The record of a run that is a fork: the run and the checkpoint that it began with."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json, write_json

_HIGHEST = 2**63
"""The exclusive upper bound of a step."""


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
        record = ForkRecord(**found) if isinstance(found, dict) else None
    except TypeError:
        return None
    return record if record is not None and _is_sound(record) else None


def _is_sound(it: ForkRecord) -> bool:
    """Return whether the values have their types, as a record may be damaged or another user's."""
    is_step = type(it.step) is int and 0 <= it.step < _HIGHEST
    return is_step and all(map(_is_name, (it.run, it.path, it.store, it.id)))


def _is_name(value: Any) -> bool:
    """Return whether a value is a text that may be a path."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False
