"""The lineage of a run: the runs that it was forked from, one after the other, and all of their
forks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpckit.report.overview import is_run, runs_below
from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord, read_fork


@dataclass(frozen=True)
class Lineage:
    """Runs of which each but the first was forked from another one."""

    runs: tuple[RunDir, ...]
    """A parent comes before its forks."""
    forks: Mapping[Path, ForkRecord]
    """Where each of them was forked from, by run directory, if it is a fork."""
    missing: tuple[str, ...]
    """Run directories that a run was forked from and that are gone, or may not be read."""


def read_lineage(runs: Iterable[RunDir], root: Path) -> Lineage:
    """Return the lineage of each of these runs.

    Forks are looked for beside the runs and in the folder `root`.
    """
    forks: dict[Path, ForkRecord] = {}
    missing, wanted = list[str](), [real_path(run.path) for run in runs]
    known = dict.fromkeys(wanted)
    while wanted:
        path = wanted.pop()
        fork = _fork_of(RunDir(path))
        if fork is None:
            continue
        forks[path] = fork
        parent = real_path(Path(fork.path))
        if not is_run(parent):
            missing.append(fork.path)
        elif parent not in known:
            known[parent] = None
            wanted.append(parent)
    for folder in dict.fromkeys([*(path.parent for path in known), real_path(root)]):
        for run in runs_below(folder):
            if (fork := _fork_of(run)) is not None:
                forks[real_path(run.path)] = fork
    parents = {path: real_path(Path(fork.path)) for path, fork in forks.items()}
    ordered = in_order(known, parents)
    kept = {path: fork for path, fork in forks.items() if path in ordered}
    return Lineage(tuple(map(RunDir, ordered)), kept, tuple(dict.fromkeys(missing)))


def in_order(members: Iterable[Path], parents: Mapping[Path, Path]) -> list[Path]:
    """Return the members and all that descends from them, a parent before its forks. Pure.

    Args:
        parents: what each fork was forked from.
    """
    family = dict.fromkeys(members)
    grows = True
    while grows:
        found = [one for one, parent in parents.items() if parent in family and one not in family]
        family |= dict.fromkeys(found)
        grows = bool(found)

    def ancestors(path: Path) -> list[Path]:
        line = [path]
        while (parent := parents.get(line[0])) in family and parent not in line:
            assert parent is not None
            line.insert(0, parent)
        return line

    return sorted(family, key=ancestors)


def _fork_of(run: RunDir) -> ForkRecord | None:
    """Return the record of a run; None, too, if it is another user's and may not be read."""
    try:
        return read_fork(run)
    except PermissionError:
        return None


def real_path(path: Path) -> Path:
    """Return a path without links. Where links lead to each other, some are left, and nothing is
    raised: the path may be from a record."""
    return Path(os.path.realpath(path))
