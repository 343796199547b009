"""File-system operations that survive a crash at any instruction (local disks and NFS)."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from checkpointing.storage.interface import Buffer
from checkpointing.storage.lazy_parts import total_size, unmade
from checkpointing.storage.posix.syscalls import FileStat, Syscalls
from checkpointing.storage.posix.write_buffer import ALIGNMENT, WriteBuffer

logger = logging.getLogger("checkpointing")

_IOV_MAX = os.sysconf("SC_IOV_MAX")
_COMPARE = 1 << 20  # bytes read at a time
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_NO_DIR_FSYNC = (errno.EINVAL, errno.ENOTSUP)


def parent(path: str) -> str:
    """Returns the directory of an absolute path."""
    return path.rpartition("/")[0] or "/"


def is_temporary(name: str) -> bool:
    """Whether the name is that of a temporary file, which is being written or whose writer died."""
    return _TEMPORARY.fullmatch(name) is not None


def write_temporary(
    sys: Syscalls,
    path: str,
    parts: Sequence[Buffer],
    buffer: WriteBuffer | None = None,
    *,
    direct: bool = False,
) -> str:
    """Write a new temporary file beside `path` with `parts` end to end. Its content is durable on
    return, its name not yet.

    Args:
        buffer: what `LazyParts` are made in; None: in memory of their own.
        direct: write past the page cache, which takes less processor time and displaces nothing
            there. A file system that cannot raises OSError with EINVAL, as a rule.

    Raises:
        OSError: it failed, and the file is removed if possible. After any error the file must not
            be used again: after a failed fsync, a second one may report success for data that is
            lost.
    """
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{secrets.token_hex(8)}.tmp"
    try:
        written = _write(sys, temporary, parts, buffer or WriteBuffer(), direct=direct)
        # NFSv4 can write without any error into a file that another process has removed
        with opened(sys, temporary) as fd:
            found = sys.fstat(fd)
        if (found.inode, found.size) != (written.inode, total_size(parts)):
            raise OSError(errno.EIO, f"{temporary} is not the file that was written")
    except OSError:
        discard(sys, temporary)
        raise
    return temporary


def discard(sys: Syscalls, temporary: str) -> None:
    """Remove a temporary file; if that fails, a later sweep removes it."""
    with suppress(OSError):
        sys.unlink(temporary)


def fsync_dir(sys: Syscalls, path: str) -> None:
    """Make the names in `path` durable."""
    fd = sys.open_dir(path)
    try:
        sys.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_DIR_FSYNC:
            raise
        logger.warning(
            "%s: this file system does not support fsync of directories, so the durability of "
            "names depends on the file system alone",
            path,
        )
    finally:
        sys.close(fd)


def make_dir(sys: Syscalls, path: str) -> None:
    """Create a directory if there is none. Make its name durable in any case, since another process
    may have created it and died before doing so."""
    with suppress(FileExistsError):
        sys.mkdir(path)
    fsync_dir(sys, parent(path))


def make_root(sys: Syscalls, path: str) -> None:
    """Create a directory and all its parents, as `make_dir`.

    The parents of an existing directory are skipped: because of this order, they were durable
    before it.
    """
    chain = [path]
    if not _is_dir(sys, path):
        while (above := parent(chain[0])) != "/":
            chain.insert(0, above)
    for folder in chain:
        if not _is_dir(sys, folder):
            with suppress(FileExistsError):
                sys.mkdir(folder)
        with suppress(PermissionError):  # directories that may be traversed but not read
            fsync_dir(sys, parent(folder))


def _is_dir(sys: Syscalls, path: str) -> bool:
    try:
        sys.close(sys.open_dir(path))
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    return True


def refresh(sys: Syscalls, root: str, folder: str) -> None:
    """Make an NFS client see a name that another machine created. The client remembers for up to a
    minute that there was no such name, but asks the server about each directory that is opened, and
    sees the content of one that is listed again."""
    chain = [folder]
    while chain[0] not in (root, "/"):
        chain.insert(0, parent(chain[0]))
    for path in [parent(root), *chain]:
        try:
            sys.close(sys.open_dir(path))
        except PermissionError:
            continue
        except (FileNotFoundError, NotADirectoryError):
            if path not in chain[1:] or not _appears(sys, path):
                return


def list_again(sys: Syscalls, folder: str) -> None:
    """Make an NFS client drop its cache of the names in a folder."""
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        sys.scandir(folder)


def _appears(sys: Syscalls, folder: str) -> bool:
    """Returns whether a folder that seemed to be missing exists after all."""
    list_again(sys, parent(folder))
    with suppress(NotADirectoryError):
        return _is_dir(sys, folder)
    return False


def same_content(sys: Syscalls, path: str, parts: Sequence[Buffer]) -> bool:
    """Returns whether the file holds `parts` end to end.

    Raises:
        OSError: it cannot be read.
    """
    with opened(sys, path) as fd:
        size = total_size(parts)
        if sys.fstat(fd).size != size:
            return False
        offset, room = 0, memoryview(bytearray(min(_COMPARE, size)))
        for view in map(_view, parts):
            for start in range(0, len(view), _COMPARE):
                piece = view[start : start + _COMPARE]
                there = room[: len(piece)]
                if read_at(sys, fd, offset, there) < len(piece) or there != piece:
                    return False
                offset += len(piece)
    return True


def read_at(
    sys: Syscalls, fd: int, offset: int, into: memoryview, at_once: int | None = None
) -> int:
    """Fill `into` from `offset`. Returns the number of bytes, fewer where the file ends before
    that.

    Args:
        at_once: most bytes that one call asks for; None: no bound.
    """
    done = 0
    while done < len(into):
        piece = into[done:] if at_once is None else into[done : done + at_once]
        count = sys.preadv(fd, piece, offset + done)
        if count == 0:
            break
        done += count
    return done


@contextmanager
def opened(sys: Syscalls, path: str) -> Iterator[int]:
    """Open a file for reading, for the duration of the block; yields its descriptor."""
    fd = sys.open(path)
    try:
        yield fd
    finally:
        sys.close(fd)


def _write(
    sys: Syscalls, path: str, parts: Sequence[Buffer], buffer: WriteBuffer, *, direct: bool
) -> FileStat:
    fd = sys.create(path)
    try:
        if direct:
            sys.set_direct(fd, direct=True)
            _write_blocks(sys, fd, buffer.blocks(unmade(parts)))
        else:
            for views in buffer.views(unmade(parts)):
                _writev_all(sys, fd, views)
        sys.fsync(fd)
        written = sys.fstat(fd)
    except OSError:
        with suppress(OSError):  # the first error is the informative one
            sys.close(fd)
        raise
    sys.close(fd)  # may report an error that fsync did not
    return written


def _write_blocks(sys: Syscalls, fd: int, blocks: Iterable[memoryview]) -> None:
    """Write blocks with O_DIRECT, of which only the last may end between two multiples of
    `ALIGNMENT`."""
    for block in blocks:
        whole = len(block) // ALIGNMENT * ALIGNMENT
        if whole:
            _writev_all(sys, fd, [block[:whole]])
        if whole < len(block):
            sys.set_direct(fd, direct=False)
            _writev_all(sys, fd, [block[whole:]])


def _writev_all(sys: Syscalls, fd: int, views: list[memoryview]) -> None:
    first = 0
    while first < len(views):
        count = sys.writev(fd, views[first : first + _IOV_MAX])
        if count <= 0:
            raise OSError(errno.EIO, "the file system accepted none of the bytes")
        while first < len(views) and count >= len(views[first]):
            count -= len(views[first])
            first += 1
        if count:
            views[first] = views[first][count:]


def _view(part: Buffer) -> memoryview:
    return memoryview(part).cast("B")
