"""The code snapshot, with which a run uses the code as it was at submit time, however long it
takes."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hpckit.rundir.code_snapshot.data_files import MAX_DATA_BYTES, is_data
from hpckit.rundir.code_snapshot.git_command import git_output
from hpckit.rundir.code_snapshot.ignore_patterns import NAME as IGNORE_FILE
from hpckit.rundir.code_snapshot.left_out import (
    LeftOut,
    describe_left_out,
    group_left_out,
    largest_folders,
)
from hpckit.rundir.code_snapshot.project import Project as Project
from hpckit.rundir.code_snapshot.project import find_project as find_project
from hpckit.rundir.code_snapshot.project_files import ProjectFiles, folders_of, list_project
from hpckit.rundir.code_snapshot.shared_copies import (
    SnapshotSource,
    copy_copies,
    copy_files,
    read_copies,
    run_in_parallel,
    state_of,
    write_states,
)
from hpckit.rundir.directory import PROJECT_FOLDER
from hpckit.text import quantities

PACKAGES = ("hpckit", "checkpointing", "data")
"""hpckit's own top-level packages, which are in every snapshot."""

_AS_PROGRAM = "hpckit launch -- python FILE"
MAX_FILE_BYTES = 4 << 20
"""Larger files are data, not code: they are left out, and named in the manifest."""
MAX_FILES = 100_000
"""A folder with more files is not a project, but probably a home directory."""
MAX_BYTES = 2 << 30
"""A folder with more in it holds data that nothing here recognises."""

LARGE_FILE = "large file"
OUTSIDE_LINK = "link to a folder outside of the project"
_NOTHING_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


@dataclass(frozen=True)
class CodeSnapshot:
    """What was copied."""

    files: int
    bytes: int
    shared: int
    """How many of the files are hard links to files of an earlier snapshot."""
    left_out: list[str]
    """Files and folders that were left out, relative to the project. Many of one kind are named by
    their folder."""
    why_left_out: dict[str, str]
    """What each of them is."""
    note: str
    """A line for the user about them; empty if there is nothing to tell."""


class ProjectContent(NamedTuple):
    """What a snapshot of the project would hold of it."""

    files: dict[str, SnapshotSource]
    links: set[str]
    """Links to folders of the project."""
    left_out: list[LeftOut]

    @property
    def bytes(self) -> int:
        return sum(source.state.size for source in self.files.values())


class CodeSnapshotError(RuntimeError):
    """Raised if the project cannot be copied as it is."""


def shadowed_packages(project: Project) -> list[str]:
    """Returns a line for each of hpckit's packages that would be hidden by something in the
    project, and by which a training function could not be called."""
    return [
        f"{place}: would hide hpckit's own package {name!r} or be hidden by it, as the process of "
        "a training function imports both; rename it"
        + ("" if name == "hpckit" else f", or launch its script as a program: {_AS_PROGRAM}")
        for name, place in hidden_packages(project).items()
    ]


def hidden_packages(project: Project) -> dict[str, str]:
    """Returns those of hpckit's packages whose names the project has, with the place there."""
    found = {}
    for name in PACKAGES:
        ours = find_spec(name)
        theirs = PathFinder.find_spec(name, [str(project.root)])
        if theirs is None or ours is None or ours.origin is None:
            continue
        place = theirs.origin or _first_module(project.root / name)
        if place and not Path(place).parent.samefile(Path(ours.origin).parent):
            found[name] = place
    return found


def _first_module(folder: Path) -> str | None:
    """Returns a module in a folder that is no package but could be imported from as if it were."""
    return next((str(path) for path in sorted(folder.glob("*.py"))), None)


def take_snapshot(
    project: Project,
    into: Path,
    earlier: Path | None = None,
    listed: ProjectFiles | None = None,
    needed: Collection[str] = (),
    *,
    is_apart: bool = False,
) -> CodeSnapshot:
    """Copies the project's files, and hpckit's packages, to the new folder `into`.

    These are the files of `list_project`, as they are now. Links to files become files; links to
    folders stay links if they lead to a folder that is copied.

    Args:
        earlier: a snapshot of this user, useful only on the same file system. Files that have not
            changed since become hard links to its files; nobody can write to either.
        listed: the project's files, if they were listed already.
        needed: files of the project that the run imports, which are copied whatever they are.
        is_apart: whether the project gets a folder of its own, `PROJECT_FOLDER`, since it has
            modules with the names of hpckit's packages.

    Raises:
        CodeSnapshotError: there is too much in it for a project.
    """
    begun_s = time.time()
    into.mkdir()
    content = content_of(project, listed or list_project(project.root, project.git), needed)
    if is_apart:
        files = {f"{PROJECT_FOLDER}/{name}": source for name, source in content.files.items()}
        files |= _own_packages(project.root, set())
    else:
        files = content.files | _own_packages(project.root, {*content.files, *content.links})
    before = None if earlier is None else read_copies(earlier, _states(earlier))
    copies = copy_files(files, into, before)
    for name in sorted(content.links):
        _link(project.root, name, into / PROJECT_FOLDER if is_apart else into)
    write_states(_states(into), copies, begun_s)
    groups = sorted(group_left_out(content.left_out))
    return CodeSnapshot(
        files=len(copies),
        bytes=sum(copy.state.size for copy in copies),
        shared=sum(copy.is_shared for copy in copies),
        left_out=[group.name for group in groups],
        why_left_out={group.name: str(group) for group in groups},
        note=describe_left_out(project.root, content.left_out),
    )


def content_of(
    project: Project, listed: ProjectFiles, needed: Collection[str] = ()
) -> ProjectContent:
    """Returns what a snapshot would hold of the project, without hpckit's packages. Arguments are
    as in `take_snapshot`.

    Raises:
        CodeSnapshotError: it is too much for a project.
    """
    imported = set(needed)
    untracked = set(listed.untracked)
    classify = partial(_classify, os.fspath(project.root), imported, untracked)
    found = run_in_parallel(classify, sorted({*listed.names, *imported}))
    files = {one.name: one.source for one in found if one.source is not None}
    folders = folders_of(files)
    links = {one.name for one in found if one.kind is _Kind.LINK}
    kept = {name for name in links if _leads_to(project.root, name, folders)}
    for name in imported & files.keys():  # a file below a link is copied where that leads
        if kept and not kept.isdisjoint(folders_of([name])):
            del files[name]
    left_out = [one for one in listed.left_out if one.name not in files]
    left_out += [LeftOut(one.name, one.left_out) for one in found if one.left_out]
    content = ProjectContent(files, kept, left_out)
    _check_size(project.root, content)
    return content


def _check_size(root: Path, content: ProjectContent) -> None:
    count, size = len(content.files) + len(content.links), content.bytes
    if count <= MAX_FILES and size <= MAX_BYTES:
        return
    largest = largest_folders((name, one.state.size) for name, one in content.files.items())
    much = f"{count} files" if count > MAX_FILES else f"{quantities.size(size)} in {count} files"
    raise CodeSnapshotError(
        f"{root} holds {much}: start from your project's own folder, or have git ignore what is "
        f"not code, or list it in {root / IGNORE_FILE} (in the syntax of .gitignore); the largest "
        f"folders are {largest}"
    )


def _leads_to(root: Path, link: str, folders: Collection[str]) -> bool:
    """Returns whether a link leads to one of these folders of the project, or to its root."""
    target = (root / link).resolve().relative_to(root.resolve()).as_posix()
    return target == "." or target in folders


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
    left_out: str = ""
    """Why it is left out."""


def _classify(root: str, imported: set[str], untracked: set[str], name: str) -> _Found:
    """Args:
    imported: files that the entry point imports, however large they are.
    untracked: files that git does not track.
    """
    path = f"{root}/{name}"
    try:
        found = os.stat(path)  # noqa: PTH116 - one of tens of thousands
    except OSError as error:
        if error.errno not in _NOTHING_THERE:
            raise
        return _Found(name, _Kind.NOTHING)
    if stat.S_ISDIR(found.st_mode):
        if not Path(path).is_symlink():
            return _Found(name, _Kind.NOTHING)
        if Path(path).resolve().is_relative_to(Path(root).resolve()):
            return _Found(name, _Kind.LINK)
        return _Found(name, _Kind.LEFT_OUT, left_out=OUTSIDE_LINK)
    if not stat.S_ISREG(found.st_mode):
        return _Found(name, _Kind.NOTHING)
    limit = MAX_DATA_BYTES if name in untracked and is_data(name) else MAX_FILE_BYTES
    if found.st_size > limit and name not in imported:
        return _Found(name, _Kind.LEFT_OUT, left_out=LARGE_FILE)
    return _Found(name, _Kind.FILE, SnapshotSource(path, state_of(found)))


def _link(root: Path, name: str, into: Path) -> None:
    target = into / name
    at_home = into / (root / name).resolve().relative_to(root.resolve())
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(os.path.relpath(at_home, target.parent))


def git_facts(
    project: Project, untracked: Collection[str] | None = None
) -> dict[str, object] | None:
    """Returns revision, branch and state of the work tree, or None outside git.

    Args:
        untracked: the files of the snapshot that git does not track. None: all of them.
    """
    if not project.git:
        return None
    head = git_output(project.root, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    revision, branch = head.splitlines() if head else (None, None)
    status = git_output(project.root, "status", "--porcelain", "--untracked-files=no")
    new = _untracked(project) if untracked is None else untracked
    return {"revision": revision, "branch": branch, "dirty": bool(status or new)}


def git_diff(project: Project, untracked: Collection[str] | None = None) -> str:
    """Returns the difference to the last commit, in the form that `git apply` takes, and the names
    of untracked files. Empty outside git. Bytes that are not UTF-8 are kept as surrogates.

    Args:
        untracked: as in `git_facts`.
    """
    if not project.git:
        return ""
    arguments = ("diff", "--binary", "--no-color", "--no-ext-diff", "HEAD")
    diff = git_output(project.root, *arguments) or ""
    new = sorted(_untracked(project) if untracked is None else untracked)
    return diff + "".join(f"# untracked: {name}\n" for name in new)


def _untracked(project: Project) -> list[str]:
    return list_project(project.root, project.git).untracked


def _own_packages(root: Path, there: set[str]) -> dict[str, SnapshotSource]:
    """Returns hpckit's own files by their names in the snapshot: beside the project's code, or in a
    folder of the same name that has no such package.

    Args:
        there: names that the snapshot has from the project.
    """
    files: dict[str, SnapshotSource] = {}
    for name in PACKAGES:
        spec = find_spec(name)
        first = f"{name}/__init__.py"
        is_there = first in there or (name in there and (root / first).is_file())
        if is_there or spec is None or spec.origin is None:
            continue
        files |= _files_below(os.path.dirname(spec.origin), name)  # noqa: PTH120 - see there
    return files


def _files_below(folder: str, name: str) -> dict[str, SnapshotSource]:
    """Returns the files in `folder`, which is called `name` in the snapshot, and in its folders,
    without byte code. A `Path` for each of a thousand files would take three times as long."""
    files: dict[str, SnapshotSource] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            inside = f"{name}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    files |= _files_below(entry.path, inside)
            elif stat.S_ISREG((found := entry.stat()).st_mode):
                files[inside] = SnapshotSource(entry.path, state_of(found))
    return files
