"""Read-only copies of files, which are hard links to an earlier copy if the source has certainly
not changed.

The state of a file (size, times and inode number) tells whether it has changed, as in git's index:
each change sets the file's time of change (ctime), which no program can set. A file that was
changed shortly before it was copied could be changed again in the same tick of the clock; git calls
it racy. No state is recorded for it, and it is copied again the next time.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from hpckit.rundir.code_snapshot.project_files import folders_of
from hpckit.system.atomic_files import read_json

SETTLED_S = 300.0
"""Seconds after which a change is in the past by any clock: munge, Slurm's authentication,
tolerates clocks that differ by at most five minutes."""

_PARALLEL = 8  # files; each takes a few round trips to a shared file system, and no computing
_AT_ONCE = 32
"""Files after which it is decided again whether one thread is enough."""
_LOCAL_S = 1e-4
"""Seconds that a file takes less than, if no other machine is asked: a link takes 0.02 ms on a disk
of this machine, and each round trip of a network file system 0.2 ms and more."""
_VERSION = 1
_CAN_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_T = TypeVar("_T")


class FileState(NamedTuple):
    """What distinguishes contents of a file."""

    size: int
    mtime_ns: int
    ctime_ns: int
    number: int
    """Number of the inode."""


@dataclass(frozen=True)
class EarlierCopies:
    """Earlier copies, with the state of the source of each."""

    folder: Path
    states: Mapping[str, FileState]
    """By names relative to `folder`; only of files whose state is conclusive."""


class SnapshotSource(NamedTuple):
    """A file to copy, with its state."""

    path: str | Path
    """For tens of thousands of files, a `Path` takes as long as the access."""
    state: FileState


class FileCopy(NamedTuple):
    """The result of copying one file."""

    name: str
    state: FileState
    is_shared: bool
    """Whether it is a hard link to an earlier copy."""


def state_of(found: os.stat_result) -> FileState:
    return FileState(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def is_settled(state: FileState, now_s: float) -> bool:
    """Returns whether any change after `now_s` (seconds since the epoch) gives the file another
    state. Pure.

    After "Racy Git" of git's technical documentation.
    """
    return state.ctime_ns < (now_s - SETTLED_S) * 1e9


def copy_files(
    files: Mapping[str, SnapshotSource], into: Path, earlier: EarlierCopies | None
) -> list[FileCopy]:
    """Copies `files`, which maps names relative to `into` to sources.

    Raises:
        OSError: a file cannot be read or written.
    """
    into.mkdir(parents=True, exist_ok=True)
    place = os.fspath(into)
    for folder in sorted(folders_of(files)):  # each after the one that it is in
        with suppress(FileExistsError):
            os.mkdir(f"{place}/{folder}")  # noqa: PTH102 - as in `SnapshotSource`
    return run_in_parallel(lambda name: _copy(name, files[name], place, earlier), list(files))


def run_in_parallel(act: Callable[[str], _T], names: Sequence[str]) -> list[_T]:
    """Returns the results of `act` for `names` in no particular order, computed in parallel as soon
    as that is faster: threads that wait for no file system only wait for each other."""
    done: list[_T] = []
    for at in range(0, len(names), _AT_ONCE):
        begun_s = time.perf_counter()
        done += map(act, names[at : at + _AT_ONCE])
        if time.perf_counter() - begun_s > _AT_ONCE * _LOCAL_S:
            return done + _run_in_threads(act, names[at + _AT_ONCE :])
    return done


def _run_in_threads(act: Callable[[str], _T], names: Sequence[str]) -> list[_T]:
    # one task per file would cost more than the file
    parts = [names[n::_PARALLEL] for n in range(_PARALLEL)]
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="copying") as pool:
        done: Iterable[list[_T]] = pool.map(lambda part: [act(name) for name in part], parts)
        return [one for part in done for one in part]


def copy_copies(source: Path, into: Path) -> None:
    """Copies a folder of copies, with links unchanged, and shares its files if possible.

    Raises:
        OSError: as `copy_files`.
    """

    def copy(name: str, target: str) -> None:
        found = os.lstat(name)
        if not _is_read_only_copy(found) or not _share(name, target, state_of(found)):
            shutil.copy2(name, target)

    shutil.copytree(source, into, symlinks=True, copy_function=copy)


def write_states(path: Path, copies: Iterable[FileCopy], now_s: float) -> None:
    """Writes the states of settled copies for `read_copies`.

    Args:
        now_s: when copying started; seconds since the epoch.
    """
    settled = {copy.name: copy.state for copy in copies if is_settled(copy.state, now_s)}
    text = json.dumps({"version": _VERSION, "files": settled}, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


def read_copies(folder: Path, states: Path) -> EarlierCopies | None:
    """Returns the copies in `folder` whose states `write_states` wrote to `states`, or None if
    there is no such file or it has another form."""
    record = read_json(states)
    if not isinstance(record, dict) or record.get("version") != _VERSION:
        return None
    try:
        return EarlierCopies(
            folder, {name: FileState(*state) for name, state in record["files"].items()}
        )
    except (KeyError, TypeError, AttributeError):
        return None


def _copy(name: str, source: SnapshotSource, into: str, earlier: EarlierCopies | None) -> FileCopy:
    target = f"{into}/{name}"
    is_same = earlier is not None and earlier.states.get(name) == source.state
    if earlier and is_same and _share(f"{earlier.folder}/{name}", target, source.state):
        return FileCopy(name, source.state, is_shared=True)
    reading = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(reading)
        content = _read(reading, found.st_size)
    finally:
        os.close(reading)
    mode = stat.S_IMODE(found.st_mode & ~_CAN_WRITE) & 0o777
    writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        _write(writing, content)
        os.utime(writing, ns=(found.st_atime_ns, found.st_mtime_ns))
    finally:
        os.close(writing)
    return FileCopy(name, state_of(found), is_shared=False)


def _read(file: int, expected: int) -> bytes:
    """Returns the whole content of a file, which may have become longer or shorter."""
    content = os.read(file, expected + 1)
    if len(content) == expected:  # the usual case, without another call that returns nothing
        return content
    parts = [content]
    while part := os.read(file, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def _write(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _share(copy: str, target: str, state: FileState) -> bool:
    """Makes `target` a hard link to `copy` if that has the given state. Returns False if it does
    not, or if the file system has no links."""
    try:
        os.link(copy, target, follow_symlinks=False)
    except OSError:
        return False  # a copy instead takes longer, but is as good
    found = os.lstat(target)
    if _is_read_only_copy(found) and (found.st_size, found.st_mtime_ns) == (
        state.size,
        state.mtime_ns,
    ):
        return True
    Path(target).unlink()
    return False


def _is_read_only_copy(found: os.stat_result) -> bool:
    """Returns whether it is a file that belongs to this user and that nobody can write to."""
    is_mine = found.st_uid == os.geteuid() and not found.st_mode & _CAN_WRITE
    return stat.S_ISREG(found.st_mode) and is_mine
