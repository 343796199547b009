"""The runs that are served, each with a key that names it in addresses and in file names."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.rundir.directory import RunDir
from hpckit.serve.record_owners import foreign_record
from hpckit.system.os_errors import describe_error

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")
_OTHERS = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True)
class ServedRun:
    """A run with its key."""

    key: str
    """Letters, digits and `._~-`; no two runs have the same."""
    run: RunDir
    problem: str | None = None
    """Why its directory cannot be read, or is not to be shown."""


@dataclass(frozen=True)
class CatalogReading:
    """The runs at one time."""

    runs: Mapping[str, ServedRun]
    """By key, in the order in which they are shown."""
    problems: tuple[str, ...]
    """Folders that could not be read, a line each."""


class RunCatalog:
    """The runs that the user has named, and those in folders that the user has named."""

    def __init__(self, runs: Sequence[RunDir], roots: Sequence[Path]) -> None:
        """
        Args:
            roots: folders, of which each run directory is served, also one that is made later.
        """
        self._runs, self._roots = tuple(runs), tuple(roots)

    def read(self) -> CatalogReading:
        """Return the runs that there are now."""
        found = {run.path: _served(run) for run in self._runs}
        problems = []
        for root in self._roots:
            try:
                for one in _runs_in(root):
                    found.setdefault(one.run.path, one)
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append(f"the folder cannot be read: {describe_error(error, root)}")
        keys = keys_of(list(found))
        runs = (ServedRun(keys[path], one.run, one.problem) for path, one in found.items())
        return CatalogReading({one.key: one for one in runs}, tuple(problems))


def _runs_in(root: Path) -> Iterator[ServedRun]:
    for path in sorted(root.iterdir()):
        try:
            if (path / "submissions").is_dir():
                yield _served(RunDir(path))
        except OSError as error:  # as of a run of another user
            yield ServedRun("", RunDir(path), describe_error(error, path))


def _served(run: RunDir) -> ServedRun:
    try:
        return ServedRun("", run, foreign_record(run))
    except OSError as error:
        return ServedRun("", run, describe_error(error, run.path))


def keys_of(paths: Sequence[Path]) -> dict[Path, str]:
    """Return a key for each run directory: its name, or, if that is not plain or not the only one,
    a part of it with a hash of the path. Pure."""
    names = Counter(path.name for path in paths)
    keys = {}
    for path in paths:
        if _PLAIN.fullmatch(path.name) and names[path.name] == 1:
            keys[path] = path.name
        else:
            plain = _OTHERS.sub("-", path.name).strip("-")[:60]
            digest = hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest()[:10]
            keys[path] = f"{plain}~{digest}"
    return keys
