"""The code snapshot: what runs is what was there at submit time, however long the run goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from hpckit.launch.trees import has_tree

PACKAGES = ("hpckit", "checkpointing", "data")
"""hpckit's own top-level packages; they go into every snapshot."""

MAX_FILE_BYTES = 4 << 20
"""Larger files are data, not code: left out, and named in the manifest."""
MAX_FILES = 20_000
"""More files than this are not a project but somebody's home."""

_AT_A_TIME = 8  # files: on a shared file system each takes a few round trips, and no computing
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
    """The git work tree that holds `cwd`, or the nearest folder in it with a config tree of its
    own; `cwd` itself where there is no git."""
    here, top = cwd.resolve(), _git(cwd, "rev-parse", "--show-toplevel")
    if not top:
        return Project(here, False)
    root = Path(top.removesuffix("\n"))
    inside = (folder for folder in (here, *here.parents) if folder.is_relative_to(root))
    return Project(next(filter(has_tree, inside), root), True)


def shadowed_packages(project: Project) -> list[str]:
    """One line for each of hpckit's packages that something of the project's own would hide."""
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
    """A module in a folder that is no package but could be imported from as if it were."""
    return next((str(path) for path in sorted(folder.glob("*.py"))), None)


def take_snapshot(project: Project, into: Path) -> Snapshot:
    """Copy the project's files, and hpckit's packages, to the new folder `into`.

    In a git work tree: all tracked files, submodules' too, and untracked ones that are not
    ignored, as they are now. Elsewhere: source and configuration files outside hidden folders.
    Links to files become files; links to folders stay links, as long as they lead to the project.

    Raises:
        SnapshotError: there are too many files for a project.
    """
    into.mkdir()
    names = sorted(set(_listed(project)))
    if len(names) > MAX_FILES:
        raise SnapshotError(
            f"{project.root} holds {len(names)} files: start from your project's own folder, "
            "or let git ignore what is no code"
        )
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="snapshot") as pool:
        are_copied = pool.map(partial(_copy, project.root, into=into), names)
        left_out = [name for name, is_there in zip(names, are_copied, strict=True) if not is_there]
    _add_own_packages(into)
    copied = [path for path in into.rglob("*") if path.is_file()]
    return Snapshot(len(copied), sum(path.stat().st_size for path in copied), left_out)


def _copy(root: Path, name: str, into: Path) -> bool:
    """Copy one file or link; False if it is left out."""
    source, target = root / name, into / name
    if source.is_dir():
        inside = source.resolve().is_relative_to(root.resolve())
        if not inside:
            return False
    elif source.stat().st_size > MAX_FILE_BYTES:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        at_home = into / source.resolve().relative_to(root.resolve())
        target.symlink_to(os.path.relpath(at_home, target.parent))
    else:
        shutil.copy2(source, target)
    return True


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
    """What differs from the last commit, as `git apply` takes it, and untracked files' names.

    Empty outside git. Bytes that are no UTF-8 are kept as surrogates.
    """
    if not project.git:
        return ""
    diff = _git(project.root, "diff", "--binary", "--no-color", "--no-ext-diff", "HEAD") or ""
    new = _git(project.root, "ls-files", "--others", "--exclude-standard") or ""
    return diff + "".join(f"# untracked: {name}\n" for name in new.splitlines())


def _listed(project: Project) -> Iterator[str]:
    """Files of the project, and links to folders in it, relative to its root."""
    if project.git:
        for mode in (("--cached", "--recurse-submodules"), ("--others", "--exclude-standard")):
            for name in (_git(project.root, "ls-files", "-z", *mode) or "").split("\0"):
                path = project.root / name
                if name and (path.is_file() or (path.is_symlink() and path.is_dir())):
                    yield name
        return
    for folder, subfolders, files in os.walk(project.root):
        kept = [Path(folder) / name for name in subfolders if not _skipped(Path(folder) / name)]
        subfolders[:] = [path.name for path in kept if not path.is_symlink()]
        code = [path for name in files if (path := Path(folder) / name).suffix in _CODE]
        for path in (*code, *(path for path in kept if path.is_symlink())):
            if path.exists():
                yield str(path.relative_to(project.root))


def _skipped(folder: Path) -> bool:
    """Hidden folders, virtual environments and run directories hold no code of the project's."""
    return (
        folder.name.startswith(".")
        or folder.name in ("__pycache__", "node_modules")
        or (folder / "pyvenv.cfg").exists()
        or (folder / "submissions").is_dir()
        or (folder / "sweep.json").exists()
    )


def _add_own_packages(into: Path) -> None:
    """Beside the project's code, or into a folder of the same name that holds none."""
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None or (into / name / "__init__.py").exists():
            continue
        package = Path(spec.origin).parent
        for path in package.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                _copy(package.parent, str(path.relative_to(package.parent)), into)


def _git(cwd: Path, *arguments: str) -> str | None:
    """Output of a git command; None where git or a repository is missing."""
    command: Sequence[str] = ("git", "-C", str(cwd), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None
