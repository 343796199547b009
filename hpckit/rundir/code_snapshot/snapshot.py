"""The code snapshot, with which a run uses the code as it was at submit time, however long it
takes."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hpckit.config.config_trees import has_tree
from hpckit.rundir.code_snapshot.shared_copies import (
    SnapshotSource,
    copy_copies,
    copy_files,
    read_copies,
    run_in_parallel,
    state_of,
    write_states,
)

PACKAGES = ("hpckit", "checkpointing", "data")
"""hpckit's own top-level packages, which are in every snapshot."""

MAX_FILE_BYTES = 4 << 20
"""Larger files are data, not code: they are left out, and named in the manifest."""
MAX_FILES = 20_000
"""A folder with more files is not a project, but probably a home directory."""

_NOTHING_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_CODE = {".py", ".pyi", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".txt", ".md", ".sh"}


@dataclass(frozen=True)
class Project:
    """The folder of the user's code."""

    root: Path
    git: bool


@dataclass(frozen=True)
class CodeSnapshot:
    """What was copied."""

    files: int
    bytes: int
    shared: int
    """How many of the files are hard links to files of an earlier snapshot."""
    left_out: list[str]
    """Files over `MAX_FILE_BYTES`, relative to the project."""


class CodeSnapshotError(RuntimeError):
    """Raised if the project cannot be copied as it is."""


def find_project(cwd: Path) -> Project:
    """Returns the git work tree that holds `cwd`, or the nearest folder in it with its own config
    tree; without git, `cwd` itself."""
    here, top = cwd.resolve(), _git(cwd, "rev-parse", "--show-toplevel")
    if not top:
        return Project(here, False)
    root = Path(top.removesuffix("\n"))
    inside = (folder for folder in (here, *here.parents) if folder.is_relative_to(root))
    return Project(next(filter(has_tree, inside), root), True)


def shadowed_packages(project: Project) -> list[str]:
    """Returns a line for each of hpckit's packages that would be hidden by something in the
    project."""
    found = []
    for name in PACKAGES:
        ours = find_spec(name)
        theirs = PathFinder.find_spec(name, [str(project.root)])
        if theirs is None or ours is None or ours.origin is None:
            continue
        place = theirs.origin or _first_module(project.root / name)
        if place and not Path(place).parent.samefile(Path(ours.origin).parent):
            found.append(
                f"{place}: would hide hpckit's own package {name!r} or be hidden by it; rename it"
            )
    return found


def _first_module(folder: Path) -> str | None:
    """Returns a module in a folder that is no package but could be imported from as if it were."""
    return next((str(path) for path in sorted(folder.glob("*.py"))), None)


def take_snapshot(project: Project, into: Path, earlier: Path | None = None) -> CodeSnapshot:
    """Copies the project's files, and hpckit's packages, to the new folder `into`.

    In a git work tree, these are all tracked files, those of submodules too, and untracked files
    that are not ignored, as they are now. Elsewhere, these are source and configuration files
    outside hidden folders. Links to files become files; links to folders stay links if they lead
    into the project.

    Args:
        earlier: a snapshot of this user, useful only on the same file system. Files that have not
            changed since become hard links to its files; nobody can write to either.

    Raises:
        CodeSnapshotError: there are too many files for a project.
    """
    begun_s = time.time()
    into.mkdir()
    found = run_in_parallel(partial(_classify, project.root), sorted(set(_listed(project))))
    if (count := sum(one.kind is not _Kind.NOTHING for one in found)) > MAX_FILES:
        raise CodeSnapshotError(
            f"{project.root} holds {count} files: start from your project's own folder, "
            "or have git ignore what is not code"
        )
    files = {one.name: one.source for one in found if one.kind is _Kind.FILE and one.source}
    links = {one.name for one in found if one.kind is _Kind.LINK}
    files |= _own_packages(project.root, {*files, *links})
    before = None if earlier is None else read_copies(earlier, _states(earlier))
    copies = copy_files(files, into, before)
    for name in sorted(links):
        _link(project.root, name, into)
    write_states(_states(into), copies, begun_s)
    return CodeSnapshot(
        files=len(copies),
        bytes=sum(copy.state.size for copy in copies),
        shared=sum(copy.is_shared for copy in copies),
        left_out=sorted(one.name for one in found if one.kind is _Kind.LEFT_OUT),
    )


def copy_snapshot(snapshot: Path, into: Path) -> None:
    """Copies a snapshot to the new folder `into`; the files are shared."""
    copy_copies(snapshot, into)
    with suppress(FileNotFoundError):  # missing in a snapshot of an earlier release
        shutil.copyfile(_states(snapshot), _states(into))


def _states(snapshot: Path) -> Path:
    """Returns the path, beside a snapshot, of the recorded states of its source files."""
    return snapshot.with_name("copied.json")


class _Kind(Enum):
    """How a name in the project is handled."""

    FILE = auto()
    LINK = auto()
    """A link to a folder of the project."""
    LEFT_OUT = auto()
    NOTHING = auto()
    """The name does not exist, or is no file."""


class _Found(NamedTuple):
    name: str
    kind: _Kind
    source: SnapshotSource | None = None
    """Only for files."""


def _classify(root: Path, name: str) -> _Found:
    path = root / name
    try:
        found = path.stat()
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise
        return _Found(name, _Kind.NOTHING)
    if stat.S_ISDIR(found.st_mode):
        if not path.is_symlink():
            return _Found(name, _Kind.NOTHING)
        inside = path.resolve().is_relative_to(root.resolve())
        return _Found(name, _Kind.LINK if inside else _Kind.LEFT_OUT)
    if not stat.S_ISREG(found.st_mode):
        return _Found(name, _Kind.NOTHING)
    if found.st_size > MAX_FILE_BYTES:
        return _Found(name, _Kind.LEFT_OUT)
    return _Found(name, _Kind.FILE, SnapshotSource(path, state_of(found)))


def _link(root: Path, name: str, into: Path) -> None:
    target = into / name
    at_home = into / (root / name).resolve().relative_to(root.resolve())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(os.path.relpath(at_home, target.parent))


def git_facts(project: Project) -> dict[str, object] | None:
    """Returns revision, branch and state of the work tree, or None outside git."""
    if not project.git:
        return None
    head = _git(project.root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    revision, branch = head.splitlines() if head else (None, None)
    status = _git(project.root, "status", "--porcelain")
    return {"revision": revision, "branch": branch, "dirty": bool(status)}


def git_diff(project: Project) -> str:
    """Returns the difference to the last commit, in the form that `git apply` takes, and the names
    of untracked files. Empty outside git. Bytes that are not UTF-8 are kept as surrogates."""
    if not project.git:
        return ""
    diff = _git(project.root, "diff", "--binary", "--no-color", "--no-ext-diff", "HEAD") or ""
    new = _git(project.root, "ls-files", "--others", "--exclude-standard") or ""
    return diff + "".join(f"# untracked: {name}\n" for name in new.splitlines())


def _listed(project: Project) -> Iterator[str]:
    """Yields names of the project's files, and of links to folders in it, relative to its root.
    Some may not exist."""
    if project.git:
        for mode in (("--cached", "--recurse-submodules"), ("--others", "--exclude-standard")):
            listed = _git(project.root, "ls-files", "-z", *mode) or ""
            yield from filter(None, listed.split("\0"))
        return
    for folder, subfolders, files in os.walk(project.root):
        kept = [Path(folder) / name for name in subfolders if not _skipped(Path(folder) / name)]
        subfolders[:] = [path.name for path in kept if not path.is_symlink()]
        code = [path for name in files if (path := Path(folder) / name).suffix in _CODE]
        for path in (*code, *(path for path in kept if path.is_symlink())):
            yield str(path.relative_to(project.root))


def _skipped(folder: Path) -> bool:
    """Returns whether a folder is hidden, a virtual environment or a run directory, and so has no
    code of the project."""
    return (
        folder.name.startswith(".")
        or folder.name in ("__pycache__", "node_modules")
        or (folder / "pyvenv.cfg").exists()
        or (folder / "submissions").is_dir()
        or (folder / "sweep.json").exists()
    )


def _own_packages(root: Path, there: set[str]) -> dict[str, SnapshotSource]:
    """Returns hpckit's own files by their names in the snapshot: beside the project's code, or in a
    folder of the same name that has no such package.

    Args:
        there: names that the snapshot has from the project.
    """
    files = {}
    for name in PACKAGES:
        spec = find_spec(name)
        first = f"{name}/__init__.py"
        is_there = first in there or (name in there and (root / first).is_file())
        if is_there or spec is None or spec.origin is None:
            continue
        package = Path(spec.origin).parent
        for path in package.rglob("*"):
            if "__pycache__" not in path.parts and stat.S_ISREG((found := path.stat()).st_mode):
                files[str(path.relative_to(package.parent))] = SnapshotSource(path, state_of(found))
    return files


def _git(cwd: Path, *arguments: str) -> str | None:
    """Returns the output of a git command, or None without git or a repository."""
    command: Sequence[str] = ("git", "-C", str(cwd), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None
