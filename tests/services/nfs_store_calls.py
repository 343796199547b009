"""System calls of a file storage that something can be done before, and that say what failed."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from checkpointing.storage import Buffer
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.storage.posix.syscalls import Syscalls

Hook = Callable[[str], None]


class CaughtCalls(Syscalls):
    """Tells `hook` of each call before it is made, as "link /a/b"; of one on an open file by the
    file's name, of a link by the new one.

    Attributes:
        failed: calls that failed, and with what errno, as ("fsync /a/b", "EIO").
    """

    def __init__(self, hook: Hook = lambda call: None) -> None:
        self._hook = hook
        self._paths: dict[int, str] = {}
        self.failed: list[tuple[str, str]] = []

    @contextmanager
    def _call(self, name: str, what: str | int) -> Iterator[None]:
        call = f"{name} {what if isinstance(what, str) else self._paths[what]}"
        self._hook(call)
        try:
            yield
        except OSError as error:
            self.failed.append((call, errno.errorcode[error.errno or 0]))
            raise

    def create(self, path: str) -> int:
        with self._call("create", path):
            fd = super().create(path)
        self._paths[fd] = path
        return fd

    def open(self, path: str) -> int:
        with self._call("open", path):
            fd = super().open(path)
        self._paths[fd] = path
        return fd

    def open_dir(self, path: str) -> int:
        fd = super().open_dir(path)
        self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        with self._call("close", fd):
            super().close(fd)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        with self._call("writev", fd):
            return super().writev(fd, buffers)

    def preadv(self, fd: int, buffer: memoryview, offset: int) -> int:
        with self._call("preadv", fd):
            return super().preadv(fd, buffer, offset)

    def fsync(self, fd: int) -> None:
        with self._call("fsync", fd):
            super().fsync(fd)

    def link(self, source: str, target: str) -> None:
        with self._call("link", target):
            super().link(source, target)

    def unlink(self, path: str) -> None:
        with self._call("unlink", path):
            super().unlink(path)

    def mkdir(self, path: str) -> None:
        with self._call("mkdir", path):
            super().mkdir(path)


CHANGES = re.compile(r"(create|writev|fsync|link|unlink|mkdir) ")


class Once:
    """A hook that does something before the first call that `pattern` is found in."""

    def __init__(self, pattern: str, action: Callable[[], object]) -> None:
        self._pattern, self._action = re.compile(pattern), action
        self.done = False

    def __call__(self, call: str) -> None:
        if not self.done and self._pattern.search(call):
            self.done = True
            self._action()


class KillAt:
    """A hook that kills this process before one of the calls that change something.

    Args:
        number: of the call, from 0; -1 counts only.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self.count = 0

    def __call__(self, call: str) -> None:
        if CHANGES.match(call):
            if self.count == self._number:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1


def storage(root: Path, hook: Hook = lambda call: None) -> PosixStorage:
    """A storage whose calls `hook` is told of."""
    return PosixStorage(str(root), syscalls=CaughtCalls(hook))
