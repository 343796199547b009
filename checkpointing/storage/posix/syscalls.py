"""The system calls that the file storage makes, in one place so that tests can simulate a disk."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpointing.storage.interface import Buffer

_NO_ADVICE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ESPIPE)


@dataclass(frozen=True)
class FileStat:
    """The attributes of a file that are used."""

    inode: int
    size: int  # bytes
    modified: float  # Unix time in seconds, by the clock of the file system


class Syscalls:
    """Thin wrappers: one system call each, with absolute paths; errors are OSError."""

    def create(self, path: str) -> int:
        """Create a new file and open it for writing, with O_EXCL. Permissions follow the umask."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def set_direct(self, fd: int, *, direct: bool) -> None:
        """Set whether what is written to a file goes past the page cache (O_DIRECT). Then it must
        begin and end at multiples of `write_buffer.ALIGNMENT`, in memory and in the file. A file
        system that does not have this raises OSError with EINVAL, here or when it is written to.
        """
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags)

    def file_system(self, path: str) -> str:
        """Return the kind of the file system that a file or directory is on, such as "ext4"; "" if
        it is not known."""
        device = os.stat(path).st_dev  # noqa: PTH116
        try:
            return file_system_of(device, Path("/proc/self/mountinfo").read_bytes())
        except OSError:  # no Linux, or /proc is not mounted
            return ""

    def open(self, path: str) -> int:
        """Open a file for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_dir(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def writev(self, fd: int, buffers: Sequence[Buffer]) -> int:
        return os.writev(fd, buffers)

    def preadv(self, fd: int, buffer: memoryview, offset: int) -> int:
        return os.preadv(fd, [buffer], offset)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fstat(self, fd: int) -> FileStat:
        return _stat(os.fstat(fd))

    def stat(self, path: str) -> FileStat:
        return _stat(os.stat(path))  # noqa: PTH116

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)  # noqa: PTH104

    def unlink(self, path: str) -> None:
        os.unlink(path)  # noqa: PTH108

    def mkdir(self, path: str) -> None:
        os.mkdir(path)  # noqa: PTH102

    def scandir(self, path: str) -> list[tuple[str, bool]]:
        """Returns the names in a directory, each with whether it is a directory. Does not use a
        listing that an NFS client has cached."""
        fd = self.open_dir(path)
        try:
            _forget_listing(fd)
            with os.scandir(fd) as entries:
                return [(entry.name, entry.is_dir()) for entry in entries]
        finally:
            os.close(fd)


def file_system_of(device: int, mounts: bytes) -> str:
    """Return the kind of the file system with this device number; "" if it is not known.

    Args:
        mounts: the content of /proc/self/mountinfo. Any byte but space, tab, newline and backslash
            may be in the path of a mount, which any user may choose.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    for line in mounts.split(b"\n"):  # "36 35 98:0 /root /at rw shared:1 - ext4 /dev/sda1 rw"
        place, _, kind = line.partition(b" - ")
        if place.split(b" ")[2:3] == [wanted]:
            return kind.partition(b" ")[0].decode(errors="replace")
    return ""


def _forget_listing(fd: int) -> None:
    """Drop what the kernel has cached of an open directory.

    An NFS client (always with version 3) trusts its cache until the directory's time changes, and
    many servers count that time in ticks of 1 to 10 ms: a file that another machine creates in the
    same tick as a listing would be missing from all later listings.
    """
    if sys.platform != "linux":
        return
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno not in _NO_ADVICE:  # file systems without such a cache
            raise


def _stat(found: os.stat_result) -> FileStat:
    return FileStat(found.st_ino, found.st_size, found.st_mtime)
