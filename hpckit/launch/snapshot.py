"""The code snapshot: what runs is what was there at submit time, however long the run goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("hpckit", "checkpointing", "data")
"""hpckit's own top-level packages; they go into every snapshot."""

MAX_FILE_BYTES = 4 << 20
"""Larger files are data, not code: left out, and named in the manifest."""
MAX_FILES = 20_000
"""More files than this are not a project but somebody's home."""

_CODE = {".py", ".pyi", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".txt", ".md", ".sh"}


@dataclass(frozen=True)
class Project:
    """Where the user's code lies."""

    root: Path
    git: bool


@dataclass(frozen=True)
class Snapshot:
    """What was copied."""

    files: int
    bytes: int
    left_out: list[str]
    """Files over `MAX_FILE_BYTES`, relative to the project."""


class SnapshotError(RuntimeError):
    """The project cannot be copied as it is."""


def find_project(cwd: Path) -> Project:
    """The git work tree that holds `cwd`, or `cwd` itself where there is none."""
    top = _git(cwd, "rev-parse", "--show-toplevel")
    return Project(Path(top.strip()), True) if top else Project(cwd.resolve(), False)


def shadowed_packages(project: Project) -> list[str]:
    """One line for each of hpckit's packages that a package of the project's own would hide."""
    found = []
    for name in PACKAGES:
        ours = find_spec(name)
        theirs = PathFinder.find_spec(name, [str(project.root)])
        if theirs is None or theirs.origin is None or ours is None or ours.origin is None:
            continue
        if not Path(theirs.origin).samefile(ours.origin):
            found.append(
                f"{theirs.origin}: this package would hide hpckit's own package {name!r}; rename it"
            )
    return found


def take_snapshot(project: Project, into: Path) -> Snapshot:
    """Copy the project's files, and hpckit's packages, to the new folder `into`.

    In a git work tree: all tracked files, and untracked ones that are not ignored, as they are now.
    Elsewhere: source and configuration files outside hidden folders.

    Raises:
        SnapshotError: there are too many files for a project.
    """
    into.mkdir()
    names = list(_listed(project))
    if len(names) > MAX_FILES:
        raise SnapshotError(
            f"{project.root} holds {len(names)} files: start from your project's own folder, "
            "or let git ignore what is no code"
        )
    large = [name for name in names if (project.root / name).stat().st_size > MAX_FILE_BYTES]
    for name in sorted(set(names) - set(large)):
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project.root / name, target)
    _add_own_packages(into)
    copied = [path for path in into.rglob("*") if path.is_file()]
    return Snapshot(len(copied), sum(path.stat().st_size for path in copied), large)


def git_facts(project: Project) -> dict[str, object] | None:
    """Revision, branch and state of the work tree; None outside git."""
    if not project.git:
        return None
    revision = _git(project.root, "rev-parse", "HEAD")
    branch = _git(project.root, "rev-parse", "--abbrev-ref", "HEAD")
    status = _git(project.root, "status", "--porcelain")
    return {
        "revision": revision.strip() if revision else None,
        "branch": branch.strip() if branch else None,
        "dirty": bool(status),
    }


def git_diff(project: Project) -> str:
    """What differs from the last commit, untracked files' names included; empty outside git."""
    if not project.git:
        return ""
    diff = _git(project.root, "diff", "HEAD") or ""
    new = _git(project.root, "ls-files", "--others", "--exclude-standard") or ""
    return diff + "".join(f"# untracked: {name}\n" for name in new.splitlines())


def _listed(project: Project) -> Iterator[str]:
    if project.git:
        command = ("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in (_git(project.root, *command) or "").split("\0"):
            if name and (project.root / name).is_file():
                yield name
        return
    for folder, subfolders, files in os.walk(project.root):
        subfolders[:] = [name for name in subfolders if not _skipped(Path(folder) / name)]
        for name in files:
            path = Path(folder) / name
            if path.suffix in _CODE and path.is_file():
                yield str(path.relative_to(project.root))


def _skipped(folder: Path) -> bool:
    """Hidden folders, virtual environments and run directories hold no code of the project's."""
    return (
        folder.name.startswith(".")
        or folder.name in ("__pycache__", "node_modules")
        or (folder / "pyvenv.cfg").exists()
        or (folder / "submissions").is_dir()
    )


def _add_own_packages(into: Path) -> None:
    for name in PACKAGES:
        spec = find_spec(name)
        if (into / name).exists() or spec is None or spec.origin is None:
            continue
        source = Path(spec.origin).parent
        shutil.copytree(source, into / name, ignore=shutil.ignore_patterns("__pycache__"))


def _git(cwd: Path, *arguments: str) -> str | None:
    """Output of a git command; None where git or a repository is missing."""
    command: Sequence[str] = ("git", "-C", str(cwd), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
