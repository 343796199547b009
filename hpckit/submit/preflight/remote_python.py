"""Checks before submission that the interpreter of the nodes exists, where this machine sees it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from hpckit.config.spec import RunSpec

_KEY = "cluster.slurm.python"


@dataclass(frozen=True)
class PythonCheck:
    """The results of the check of an interpreter."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_python(spec: RunSpec, run: Path) -> PythonCheck:
    """Checks `cluster.slurm.python`. A path that does not exist here may exist on the nodes, unless
    its folder is on the file system of the run directory, which all nodes share.

    Args:
        run: the run directory.
    """
    slurm = spec.cluster.slurm
    if slurm is None or slurm.python is None:
        return PythonCheck()
    named = slurm.python
    path = Path(named)
    if not path.is_absolute():
        return PythonCheck(notes=[_unknown(f"{named} is looked up on each node")])
    if path.exists():
        return PythonCheck(_unusable(path))
    if path.parent.is_dir() and _device(path.parent) == _device(run):
        near = sorted(one.name for one in path.parent.glob("python*"))
        has = f"{path.parent} has {', '.join(near)}" if near else f"{path.parent} has no python"
        return PythonCheck([f"{_KEY}: there is no {path}; {has}"])
    return PythonCheck(notes=[_unknown(f"{path} is not on this machine")])


def _unusable(path: Path) -> list[str]:
    if path.is_dir():
        return [f"{_KEY}: {path} is a folder; name the interpreter in it, as {path}/bin/python"]
    if not os.access(path, os.X_OK):
        return [f"{_KEY}: {path} is not executable; name an interpreter, or chmod +x it"]
    return []


def _unknown(why: str) -> str:
    return f"{_KEY}: {why} and cannot be checked here; without it on a node, its job fails"


def _device(path: Path) -> int:
    existing = next(one for one in (path, *path.parents) if one.exists())
    return existing.stat().st_dev
