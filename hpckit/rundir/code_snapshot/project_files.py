"""Lists the files of a project that belong in its code snapshot, and what is left out and why.

The project is walked once, level by level, and what is left out is not entered: neither by the walk
nor by git, which is only asked about names that the walk has found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hpckit.rundir.code_snapshot import data_files, folder_kinds
from hpckit.rundir.code_snapshot.configured_paths import NO_PATHS, ConfiguredPaths
from hpckit.rundir.code_snapshot.folder_kinds import NEVER_CODE, FolderKind
from hpckit.rundir.code_snapshot.git_command import ignored_names, tracked_names
from hpckit.rundir.code_snapshot.ignore_patterns import NAME as IGNORE_FILE
from hpckit.rundir.code_snapshot.ignore_patterns import IgnorePatterns, read_patterns
from hpckit.rundir.code_snapshot.left_out import LeftOut
from hpckit.system.os_errors import describe_error

SHARD = "shard"
DATA_FILE = "data file"
TENSORBOARD = "TensorBoard log"
LISTED = f"listed in {IGNORE_FILE}"


@dataclass
class ProjectFiles:
    """The result of the walk. Names are relative to the project."""

    names: list[str] = field(default_factory=list)
    """Files, and links to folders, in no particular order."""
    untracked: list[str] = field(default_factory=list)
    """Those of them that git does not track; empty outside git."""
    left_out: list[LeftOut] = field(default_factory=list)


class _Folder(NamedTuple):
    """A folder to list."""

    name: str
    """Empty for the project itself."""
    is_submodule: bool = False
    """Whether it belongs to a submodule, of which only tracked files are copied."""


class _Entry(NamedTuple):
    """A file or folder to decide on."""

    name: str
    is_folder: bool
    is_tracked: bool
    is_submodule: bool
    kind: str | None
    """Why it is left out unless git ignores it, of which nothing is said."""


def list_project(root: Path, is_git: bool, paths: ConfiguredPaths = NO_PATHS) -> ProjectFiles:
    """Returns the files of the project in `root`.

    In a git work tree, these are all tracked files, those of submodules too, and untracked files
    that are not ignored. Elsewhere, these are files outside hidden folders that are not of data,
    media or logs.

    Raises:
        OSError: the project, or its list of ignored files, cannot be read.
    """
    walk = _ProjectWalk(root, is_git, paths)
    level = [_Folder("")]
    while level:
        level = walk.list_level(level)
    return walk.found


class _ProjectWalk:
    """The state of a walk."""

    def __init__(self, root: Path, is_git: bool, paths: ConfiguredPaths) -> None:
        self.found = ProjectFiles()
        self._root, self._is_git, self._paths = root, is_git, paths
        self._patterns: IgnorePatterns = read_patterns(root)
        self._tracked = tracked_names(root) if is_git else set()
        self._tracked_folders = folders_of(self._tracked)

    def list_level(self, folders: Sequence[_Folder]) -> list[_Folder]:
        """Lists these folders and returns those to list next."""
        entries = [entry for folder in folders for entry in self._entries(folder)]
        ignored = self._ignored(entries)
        below = []
        for entry in entries:
            if entry.name in ignored:
                continue
            if entry.kind is not None:
                self._leave_out(f"{entry.name}/" if entry.is_folder else entry.name, entry.kind)
            elif entry.is_folder:
                below.append(_Folder(entry.name, entry.is_submodule))
            else:
                self.found.names.append(entry.name)
                if self._is_git and not entry.is_tracked:
                    self.found.untracked.append(entry.name)
        return below

    def _entries(self, folder: _Folder) -> Iterator[_Entry]:
        """Yields what is in a folder, unless all of it is left out."""
        path = self._root / folder.name
        is_tracked = folder.name in self._tracked_folders
        try:
            with os.scandir(path) as listed:
                found = list(listed)
        except OSError as error:
            if not folder.name or is_tracked:
                raise
            self._leave_out(f"{folder.name}/", describe_error(error))
            return
        names = {one.name for one in found}
        kind = folder_kinds.kind_of_folder(path, names, is_tracked) if folder.name else None
        if kind is None and folder.name and self._is_git and not is_tracked and ".git" in names:
            kind = FolderKind.REPOSITORY
        if kind is not None:
            self._leave_out(f"{folder.name}/", kind)
            return
        is_submodule = folder.is_submodule or (bool(folder.name) and ".git" in names)
        for one in found:
            name = f"{folder.name}/{one.name}" if folder.name else one.name
            is_folder = one.is_dir(follow_symlinks=False)
            if self._is_never_code(one.name, name, is_folder):
                continue
            is_known = name in self._tracked or (is_folder and name in self._tracked_folders)
            why = self._named(name, is_folder)
            if why is None and not is_folder and not is_known:
                why = self._kind_of_file(one.name, names)
            yield _Entry(name, is_folder, is_known, is_submodule, why)

    def _is_never_code(self, own: str, name: str, is_folder: bool) -> bool:
        if own.startswith(".") and not self._is_git:
            return True
        if is_folder:
            return own in NEVER_CODE
        return own == ".git" or (data_files.is_bytecode(own) and name not in self._tracked)

    def _named(self, name: str, is_folder: bool) -> str | None:
        """Returns why the config or the user's ignore file leaves it out, or None."""
        if kind := self._paths.kind_of(name, is_folder):
            return kind
        return LISTED if self._patterns.matches(name, is_folder) else None

    def _kind_of_file(self, own: str, names: set[str]) -> str | None:
        """Returns why a file that git does not track is left out, or None."""
        if data_files.is_tensorboard(own):
            return TENSORBOARD
        if data_files.is_shard(own, names):
            return SHARD
        if not self._is_git and data_files.is_data_or_media(own):
            return DATA_FILE
        return None

    def _ignored(self, entries: Sequence[_Entry]) -> set[str]:
        """Returns the names that git does not list."""
        if not self._is_git:
            return set()
        new = [entry for entry in entries if not entry.is_tracked]
        inner = {entry.name for entry in new if entry.is_submodule}
        return inner | ignored_names(
            self._root, [entry.name for entry in new if entry.name not in inner]
        )

    def _leave_out(self, name: str, kind: str) -> None:
        self.found.left_out.append(LeftOut(name, kind, is_shown=kind != LISTED))


def folders_of(names: Iterable[str]) -> set[str]:
    """Returns all folders that hold one of these files, at any depth."""
    found: set[str] = set()
    for name in names:
        folder = name.rpartition("/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found
