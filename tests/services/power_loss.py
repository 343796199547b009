"""A disk in memory that loses at a power cut what was not made durable: for the file storage.

Files and names are durable separately, as POSIX has it: fsync of a file makes its content durable
but not its name, fsync of a directory makes the names in it durable but no content. What was not
made durable is there after a power cut, or not, or in part, by chance and each thing for itself;
real file systems keep more order than this.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from checkpointing.storage.interface import Buffer
from checkpointing.storage.posix.syscalls import FileStat, Syscalls
from checkpointing.storage.posix.write_buffer import ALIGNMENT


class PowerLossError(BaseException):
    """The machine is off, or the process dead. Nothing that runs on it can catch this."""


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    dirty: bool = True  # False also after a failed fsync, which drops what it could not write


@dataclass
class _Folder:
    names: dict[str, int] = field(default_factory=dict)  # inode by name, as programs see it
    # what each name has stood for since the last fsync, None: nothing
    history: dict[str, list[int | None]] = field(default_factory=dict)

    def set(self, name: str, inode: int | None) -> None:
        self.history.setdefault(name, [self.names.get(name)]).append(inode)
        if inode is None:
            del self.names[name]
        else:
            self.names[name] = inode


class LossyDisk(Syscalls):
    """System calls on a simulated disk with an empty, durable root directory.

    Attributes:
        calls: the calls made so far, as "link /a/b".
        stop_at: number of the call, from 0, before which the machine stops; None: never.
        fail: called before each call, with its text; may raise OSError. A failed fsync leaves
            the content in doubt for ever, although the next fsync reports success.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.stop_at: int | None = None
        self.fail: Callable[[str], None] = lambda call: None
        self._stopped = False
        self._time = 1_000_000.0
        self._inodes: dict[int, _File | _Folder] = {1: _Folder()}
        self._modified: dict[int, float] = {}
        self._next = itertools.count(2)
        self._open: dict[int, tuple[int, str]] = {}  # inode and path by descriptor
        self._direct: set[int] = set()  # descriptors of files that are written past the cache

    def power_cut(self, random: Random) -> LossyDisk:
        """The disk as it is found at the next start."""
        after = LossyDisk()
        after._inodes = {}
        after._next = self._next
        for inode, thing in self._inodes.items():
            if isinstance(thing, _File):
                content = _content_after(thing, random)
                after._inodes[inode] = _File(bytearray(content), content, dirty=False)
            else:
                after._inodes[inode] = _Folder(_names_after(thing, random))
        return after

    def kill(self) -> None:
        """End the process; what it wrote stays in the caches of the machine."""
        self._stopped, self.stop_at, self._open = False, None, {}

    def create(self, path: str) -> int:
        folder, name = self._enter("create", path)
        if name in folder.names:
            raise _error(errno.EEXIST, path)
        inode = self._new(_File())
        folder.set(name, inode)
        return self._descriptor(inode, path)

    def set_direct(self, fd: int, *, direct: bool) -> None:
        (self._direct.add if direct else self._direct.discard)(fd)

    def file_system(self, path: str) -> str:
        return "ext4"

    def open(self, path: str) -> int:
        self._call(f"open {path}")
        return self._descriptor(self._find(path), path)

    def open_dir(self, path: str) -> int:
        self._call(f"open_dir {path}")
        self._folder(path)
        return self._descriptor(self._find(path), path)

    def close(self, fd: int) -> None:
        _, path = self._open.pop(fd)
        self._call(f"close {path}")

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        file, path = self._file(fd)
        self._call(f"writev {path}")
        data = b"".join(buffers)
        if fd in self._direct:
            _check_direct(file, buffers, path)
            data = data[: len(data) // 2 // ALIGNMENT * ALIGNMENT] or data
        else:
            data = data[: max(1, len(data) // 2)]
        file.data += data  # a short write each time
        file.dirty = True
        return len(data)

    def preadv(self, fd: int, buffer: memoryview, offset: int) -> int:
        file, path = self._file(fd)
        self._call(f"preadv {path}")
        piece = file.data[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        return len(piece)

    def fsync(self, fd: int) -> None:
        inode, path = self._open[fd]
        thing = self._inodes[inode]
        try:
            self._call(f"fsync {path}")
        except OSError:
            if isinstance(thing, _File):
                thing.dirty = False
            raise
        if isinstance(thing, _Folder):
            thing.history.clear()
        elif thing.dirty:
            thing.durable, thing.dirty = bytes(thing.data), False

    def fstat(self, fd: int) -> FileStat:
        inode, path = self._open[fd]
        self._call(f"fstat {path}")
        return self._stat(inode)

    def stat(self, path: str) -> FileStat:
        self._call(f"stat {path}")
        return self._stat(self._find(path))

    def link(self, source: str, target: str) -> None:
        folder, name = self._enter("link", target)
        inode = self._find(source)
        if name in folder.names:
            raise _error(errno.EEXIST, target)
        folder.set(name, inode)

    def rename(self, source: str, target: str) -> None:
        folder, name = self._enter("rename", target)
        inode = self._find(source)
        if folder.names.get(name) == inode:
            return  # POSIX: two names of one file stay
        folder.set(name, inode)
        above, _, old = source.rpartition("/")
        self._folder(above or "/").set(old, None)

    def unlink(self, path: str) -> None:
        folder, name = self._enter("unlink", path)
        self._find(path)
        folder.set(name, None)

    def mkdir(self, path: str) -> None:
        folder, name = self._enter("mkdir", path)
        if name in folder.names:
            raise _error(errno.EEXIST, path)
        folder.set(name, self._new(_Folder()))

    def scandir(self, path: str) -> list[tuple[str, bool]]:
        self._call(f"scandir {path}")
        names = self._folder(path.rstrip("/") or "/").names
        return [(n, isinstance(self._inodes[i], _Folder)) for n, i in names.items()]

    def _call(self, text: str) -> None:
        if self._stopped or len(self.calls) == self.stop_at:
            self._stopped = True
            raise PowerLossError(text)
        self.calls.append(text)
        self.fail(text)

    def _enter(self, verb: str, path: str) -> tuple[_Folder, str]:
        self._call(f"{verb} {path}")
        above, _, name = path.rpartition("/")
        return self._folder(above or "/"), name

    def _new(self, thing: _File | _Folder) -> int:
        inode = next(self._next)
        self._inodes[inode] = thing
        self._time += 1
        self._modified[inode] = self._time
        return inode

    def _find(self, path: str) -> int:
        inode = 1
        for part in filter(None, path.split("/")):
            thing = self._inodes[inode]
            if isinstance(thing, _File):
                raise _error(errno.ENOTDIR, path)
            if part not in thing.names:
                raise _error(errno.ENOENT, path)
            inode = thing.names[part]
        return inode

    def _folder(self, path: str) -> _Folder:
        found = self._inodes[self._find(path)]
        if isinstance(found, _File):
            raise _error(errno.ENOTDIR, path)
        return found

    def _file(self, fd: int) -> tuple[_File, str]:
        inode, path = self._open[fd]
        found = self._inodes[inode]
        if isinstance(found, _Folder):
            raise _error(errno.EISDIR, path)
        return found, path

    def _stat(self, inode: int) -> FileStat:
        thing = self._inodes[inode]
        size = len(thing.data) if isinstance(thing, _File) else 0
        return FileStat(inode, size, self._modified.get(inode, 0.0))

    def _descriptor(self, inode: int, path: str) -> int:
        fd = next(self._next)
        self._open[fd] = inode, path
        return fd


def _check_direct(file: _File, buffers: Sequence[Buffer], path: str) -> None:
    """Raise the error of a disk that is asked to write past the cache what is not whole blocks."""
    at = [np.frombuffer(buffer, np.uint8).ctypes.data for buffer in buffers]
    if any(n % ALIGNMENT for n in [len(file.data), *map(len, buffers), *at]):
        raise _error(errno.EINVAL, path)


def _content_after(file: _File, random: Random) -> bytes:
    """What is in a file after a power cut: all, what was durable, a part, or blocks of zeros."""
    data = bytes(file.data)
    if file.durable == data:
        return data
    cut = random.randint(0, len(data))
    zeros = data[:cut] + bytes(len(data) - cut)
    return random.choice([data, file.durable, data[:cut], zeros])


def _names_after(folder: _Folder, random: Random) -> dict[str, int]:
    names = dict(folder.names)
    for name, history in folder.history.items():
        inode = random.choice(history)
        names.pop(name, None)
        if inode is not None:
            names[name] = inode
    return names


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
