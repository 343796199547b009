"""Copies of files, for keeps: read-only, and one file (a hard link) with an earlier copy of what is
certainly the same.

That it is the same is told by size, times and number of a file, as git does it for its index: what
changes a file gives it another time of change (ctime), which no program can set. A file that was
changed shortly before it was copied could be changed once more in the same tick of the clock; git
calls it racy. Nothing is told of it, and the next time it is copied, too.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from hpckit.system.atomic_files import read_json

SETTLED_S = 300.0
"""Seconds after which a change is in the past by any clock: munge, by which Slurm knows who asks,
lets clocks differ by five minutes at most."""

_AT_A_TIME = 8  # files: on a shared file system each takes a few round trips, and no computing
_VERSION = 1
_CAN_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_T = TypeVar("_T")


class FileState(NamedTuple):
    """What tells one content of a file from another."""

    size: int
    mtime_ns: int
    ctime_ns: int
    number: int
    """Of its inode."""


@dataclass(frozen=True)
class EarlierCopies:
    """Earlier copies, and of which state of its source each of them is."""

    folder: Path
    states: Mapping[str, FileState]
    """By names relative to `folder`; of those alone that can be told by it."""


class SnapshotSource(NamedTuple):
    """A file, as it was seen."""

    path: Path
    state: FileState


class FileCopy(NamedTuple):
    """What was made of one file."""

    name: str
    state: FileState
    is_shared: bool
    """It is one file with an earlier copy."""


def state_of(found: os.stat_result) -> FileState:
    return FileState(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def is_settled(state: FileState, now_s: float) -> bool:
    """Whether a change after `now_s` (seconds since the epoch) gives the file another state. Pure.

    After "Racy Git" of git's technical documentation.
    """
    return state.ctime_ns < (now_s - SETTLED_S) * 1e9


def copy_files(
    files: Mapping[str, SnapshotSource], into: Path, earlier: EarlierCopies | None
) -> list[FileCopy]:
    """Copy `files`, by whose names relative to `into` their sources are found.

    Raises:
        OSError: one of them cannot be read or written.
    """
    for folder in sorted({(into / name).parent for name in files}):
        folder.mkdir(parents=True, exist_ok=True)
    return run_in_parallel(lambda name: _copy(name, files[name], into, earlier), list(files))


def run_in_parallel(act: Callable[[str], _T], names: Sequence[str]) -> list[_T]:
    """What `act` gives for each of `names`, in no order; several at a time."""
    parts = [names[n::_AT_A_TIME] for n in range(_AT_A_TIME)]  # a task each costs more than a file
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="copying") as pool:
        done: Iterable[list[_T]] = pool.map(lambda part: [act(name) for name in part], parts)
        return [one for part in done for one in part]


def copy_copies(source: Path, into: Path) -> None:
    """Copy a folder of copies, with links as they are; its files are shared as far as can be.

    Raises:
        OSError: as `copy_files`.
    """

    def copy(name: str, target: str) -> None:
        found = Path(name).lstat()
        if not _is_kept(found) or not _share(Path(name), Path(target), state_of(found)):
            shutil.copy2(name, target)

    shutil.copytree(source, into, symlinks=True, copy_function=copy)


def write_states(path: Path, copies: Iterable[FileCopy], now_s: float) -> None:
    """For `read_copies`, of the settled ones of `copies`.

    Args:
        now_s: when they were begun; seconds since the epoch.
    """
    settled = {copy.name: copy.state for copy in copies if is_settled(copy.state, now_s)}
    text = json.dumps({"version": _VERSION, "files": settled}, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


def read_copies(folder: Path, states: Path) -> EarlierCopies | None:
    """The copies in `folder`, of which `write_states` wrote at `states`; None where it did not, or
    in another form."""
    told = read_json(states)
    if not isinstance(told, dict) or told.get("version") != _VERSION:
        return None
    try:
        return EarlierCopies(
            folder, {name: FileState(*state) for name, state in told["files"].items()}
        )
    except (KeyError, TypeError, AttributeError):
        return None


def _copy(name: str, source: SnapshotSource, into: Path, earlier: EarlierCopies | None) -> FileCopy:
    target = into / name
    is_same = earlier is not None and earlier.states.get(name) == source.state
    if earlier and is_same and _share(earlier.folder / name, target, source.state):
        return FileCopy(name, source.state, is_shared=True)
    with open(source.path, "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        content = file.read()
    with open(target, "xb", opener=_opener(found.st_mode & ~_CAN_WRITE)) as file:
        file.write(content)
        file.flush()  # else it is written, and dated, when this is closed
        os.utime(file.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
    return FileCopy(name, state_of(found), is_shared=False)


def _opener(mode: int) -> Callable[[str, int], int]:
    return lambda path, flags: os.open(path, flags, stat.S_IMODE(mode) & 0o777)


def _share(copy: Path, target: Path, state: FileState) -> bool:
    """Make `target` one file with the `copy` of that state; False if there is none like it, or the
    file system does not have it."""
    try:
        os.link(copy, target, follow_symlinks=False)
    except OSError:
        return False  # a copy in its place takes longer, and is as good
    found = target.lstat()
    if _is_kept(found) and (found.st_size, found.st_mtime_ns) == (state.size, state.mtime_ns):
        return True
    target.unlink()
    return False


def _is_kept(found: os.stat_result) -> bool:
    """Whether it is a file that is this user's, and that nobody writes to."""
    is_mine = found.st_uid == os.geteuid() and not found.st_mode & _CAN_WRITE
    return stat.S_ISREG(found.st_mode) and is_mine
