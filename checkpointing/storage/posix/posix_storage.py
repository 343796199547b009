"""A storage of files, on local disks and NFS."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TypeVar

from checkpointing.errors import DamagedError, StoreError
from checkpointing.storage.exclusive_create import ExclusiveCreator, NoExclusiveCreateError
from checkpointing.storage.interface import Buffer, ObjectInfo
from checkpointing.storage.key_rules import check_key, check_prefix, check_range, is_name
from checkpointing.storage.lazy_parts import total_size
from checkpointing.storage.posix import durable_files as files
from checkpointing.storage.posix.kept_descriptor import KeptDescriptor
from checkpointing.storage.posix.posix_errors import classify, is_no_link
from checkpointing.storage.posix.syscalls import FileStat, Syscalls
from checkpointing.storage.posix.write_buffer import WriteBufferPool
from checkpointing.storage.retry import (
    RequestCounters,
    RequestRetrier,
    StorageRetryPolicy,
    TransientRequestError,
)

logger = logging.getLogger("checkpointing")

T = TypeVar("T")

POLICY = StorageRetryPolicy(longest_s=5.0, most_tries=5)
# Bytes of one call where much is read into given memory. Linux takes a call for more as a random
# read, and reads ahead in pages instead of large blocks of them.
_READ_AT_ONCE = 1 << 20
DIRECT_FROM = 4 << 20
# File systems of local disks, on which that takes less processor time, as measured on ext4. NFS
# would make its server write each block to its disk before the next one is sent.
DIRECT_ON = ("ext4", "xfs")
_NO_DIRECT = (errno.EINVAL, errno.ENOTSUP)  # of a file system that cannot write past the page cache
_NFS_REMOVED = ".nfs"  # prefix to which an NFS client renames a file that is removed while open


class PosixStorage:
    """A `Storage` of the files under one directory, which implements `SupportsTemporaryRemoval`.

    An object is written under a temporary name beside its own, made durable, and then linked to its
    name. After an error of write, fsync or close that file is never used again: a retry writes the
    whole object to a new file.
    """

    def __init__(
        self,
        root: str,
        *,
        policy: StorageRetryPolicy = POLICY,
        syscalls: Syscalls | None = None,
        direct_from: int = DIRECT_FROM,
    ) -> None:
        """
        Args:
            root: absolute path; created with its parents when the first object is written.
            direct_from: bytes of an object from which on it is written past the page cache, on
                `DIRECT_ON`.
        """
        self._root = os.path.normpath(root)
        self._sys = syscalls or Syscalls()
        self._buffers, self._direct_from = WriteBufferPool(), direct_from
        self._writes_direct: bool | None = None  # None: it is not known yet
        self._kept = KeptDescriptor(self._sys)
        self._retrier = RequestRetrier(policy, (OSError,), classify)
        self._exclusive = ExclusiveCreator(self, self._create_by_link, probe=False)
        self._ready: set[str] = set()  # directories known to be durable
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._root

    @property
    def counters(self) -> RequestCounters:
        return self._retrier.counters

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        path = self._path(key)
        self._write("write", path, lambda: self._put(path, parts))
        self.counters.add(bytes_out=total_size(parts))

    def create(self, key: str, data: bytes) -> bool:
        return self._exclusive.create(key, data)

    def replace(self, key: str, data: bytes) -> None:
        path = self._path(key)
        self._write("replace", path, lambda: self._replace(path, [data]))
        self.counters.add(bytes_out=len(data))

    def get(self, key: str) -> bytes:
        path = self._path(key)
        data = self._run("read", path, lambda: bytes(self._read(path, 0, None)))
        self.counters.add(bytes_in=len(data))
        return data

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        check_range(start, length)
        path = self._path(key)
        data = self._run("read", path, lambda: self._read(path, start, length))
        self.counters.add(bytes_in=len(data))
        return data

    def read_into(self, key: str, start: int, into: memoryview) -> None:
        """See `SupportsReadInto`."""
        check_range(start, len(into))
        path = self._path(key)
        self._run("read", path, lambda: self._found(path, lambda: self._fill(path, start, into)))
        self.counters.add(bytes_in=len(into))

    def reading_in_order(self) -> AbstractContextManager[None]:
        """See `SupportsReadInto`."""
        return self._kept.keeping()

    def list(self, prefix: str) -> list[ObjectInfo]:
        check_prefix(prefix)
        found = self._run("list", f"{self._root}/{prefix}", lambda: self._list(prefix))
        objects = [entry for entry, temporary in found if not temporary]
        if any("/" not in entry.key[len(prefix) :] for entry in objects):
            self._note_durable(f"{self._root}/{prefix}".rstrip("/"))
        return sorted(objects, key=lambda entry: entry.key)

    def delete(self, keys: Iterable[str]) -> None:
        folders = set()
        for path in map(self._path, keys):
            self._run("remove", path, partial(self._unlink, path))
            folders.add(files.parent(path))
        for folder in folders:
            self._run("remove from", folder, partial(self._fsync_if_there, folder))

    def sweep_temporaries(self, older_than_s: float) -> int:
        """See `SupportsTemporaryRemoval`."""
        try:
            now = self._run("sweep", self._root, self._now)
        except FileNotFoundError:
            return 0
        found = self._run("sweep", self._root, lambda: self._list(""))
        old = [e for e, temporary in found if temporary and e.modified < now - older_than_s]
        for entry in old:
            path = f"{self._root}/{entry.key}"
            self._run("remove", path, partial(self._unlink, path))
        return len(old)

    def close(self) -> None:
        self._retrier.close()

    def _path(self, key: str) -> str:
        if files.is_temporary(key.rpartition("/")[2]):
            raise ValueError(
                f"object key {key!r}: names like this are reserved for temporary files"
            )
        return f"{self._root}/{check_key(key)}"

    def _run(self, verb: str, path: str, call: Callable[[], T]) -> T:
        def once() -> T:
            try:
                return call()
            except OSError as error:
                # the error makes an NFS client look the folder up again
                if error.errno == errno.ESTALE:
                    with suppress(OSError):
                        files.refresh(self._sys, self._root, files.parent(path))
                raise

        return self._retrier.run(f"{verb} {path}", once)

    def _write(self, verb: str, path: str, call: Callable[[], T]) -> T:
        def once() -> T:
            try:
                return call()
            except FileNotFoundError as error:
                with self._lock:
                    self._ready.clear()
                raise TransientRequestError(
                    "a file or folder was removed while it was in use"
                ) from error

        return self._run(verb, path, once)

    def _put(self, path: str, parts: Sequence[Buffer]) -> None:
        temporary = self._write_temporary(path, parts)
        try:
            self._link_new(temporary, path, parts)
        finally:
            files.discard(self._sys, temporary)
        files.fsync_dir(self._sys, files.parent(path))

    def _link_new(self, temporary: str, path: str, parts: Sequence[Buffer]) -> None:
        """Link a file to a name that no other caller uses."""
        try:
            self._sys.link(temporary, path)
        except FileExistsError:
            # this caller's own file, of an earlier try or an NFS reply that was lost
            if not files.same_content(self._sys, path, parts):
                raise StoreError(
                    f"write {path}: another object has this name and is not changed"
                ) from None
        except OSError as error:
            if not is_no_link(error):
                raise
            self._sys.rename(temporary, path)

    def _create_by_link(self, key: str, data: bytes) -> bool:
        path = self._path(key)
        made = self._write("create", path, lambda: self._create_once(path, data))
        self.counters.add(bytes_out=len(data))
        return made

    def _create_once(self, path: str, data: bytes) -> bool:
        temporary = self._write_temporary(path, [data])
        try:
            self._sys.link(temporary, path)
            holds = True
        except FileExistsError:
            holds = files.same_content(self._sys, path, [data])
        except OSError as error:
            if is_no_link(error):
                raise NoExclusiveCreateError("hard links are not supported here") from error
            raise
        finally:
            files.discard(self._sys, temporary)
        # also where another caller created it, which may have died before it made the name durable
        files.fsync_dir(self._sys, files.parent(path))
        return holds

    def _replace(self, path: str, parts: Sequence[Buffer]) -> None:
        temporary = self._write_temporary(path, parts)
        try:
            self._sys.rename(temporary, path)
        except FileNotFoundError:
            # NFS reports this after a lost reply to a rename that succeeded
            if not files.same_content(self._sys, path, parts):
                raise
        except OSError:
            files.discard(self._sys, temporary)
            raise
        files.fsync_dir(self._sys, files.parent(path))

    def _write_temporary(self, path: str, parts: Sequence[Buffer]) -> str:
        folder = files.parent(path)
        self._make_ready(folder)
        with self._buffers.taken() as buffer:
            if total_size(parts) >= self._direct_from and self._can_write_direct(folder):
                try:
                    return files.write_temporary(self._sys, path, parts, buffer, direct=True)
                except OSError as error:
                    if error.errno not in _NO_DIRECT:
                        raise
                    logger.info("%s: written through the page cache: %s", self._root, error)
                    self._writes_direct = False
            return files.write_temporary(self._sys, path, parts, buffer)

    def _can_write_direct(self, folder: str) -> bool:
        if self._writes_direct is None:
            self._writes_direct = self._sys.file_system(folder) in DIRECT_ON
        return self._writes_direct

    def _make_ready(self, folder: str) -> None:
        """Make a directory durable, from the root down."""
        with self._lock:
            if folder in self._ready:
                return
        if folder == self._root:
            files.make_root(self._sys, folder)
        else:
            self._make_ready(files.parent(folder))
            files.make_dir(self._sys, folder)
        with self._lock:
            self._ready.add(folder)

    def _note_durable(self, folder: str) -> None:
        """Note that a directory in which an object lies is durable, and so are those above it: the
        writer of the object has made them so before it created a file there. The root is left to
        `_make_ready`, since a user may have moved it."""
        with self._lock:
            if self._root in self._ready:
                while folder != self._root:
                    self._ready.add(folder)
                    folder = files.parent(folder)

    def _read(self, path: str, start: int, length: int | None) -> bytearray:
        return self._found(path, lambda: self._read_once(path, start, length))

    def _found(self, path: str, read: Callable[[], T]) -> T:
        """Returns the result of `read`. If there is no such file, `read` is called again after a
        refresh of the folder, whose cached listing may be outdated.

        Raises:
            FileNotFoundError: it does not exist, or is not a file.
        """
        try:
            return _of_a_file(read)
        except FileNotFoundError:
            files.refresh(self._sys, self._root, files.parent(path))
            files.list_again(self._sys, files.parent(path))
            return _of_a_file(read)

    def _read_once(self, path: str, start: int, length: int | None) -> bytearray:
        with files.opened(self._sys, path) as fd:
            size = self._sys.fstat(fd).size
            wanted = size - start if length is None else length
            data = bytearray(max(0, min(wanted, size - start)))  # at most the bytes that exist
            count = files.read_at(self._sys, fd, start, memoryview(data))
        _check_end(path, start, wanted, count, size)
        return data

    def _fill(self, path: str, start: int, into: memoryview) -> None:
        with self._kept.opened(path) as fd:
            count = files.read_at(self._sys, fd, start, into, at_once=_READ_AT_ONCE)
            if not count or count < len(into):
                _check_end(path, start, len(into), count, self._sys.fstat(fd).size)

    def _list(self, prefix: str) -> Sequence[tuple[ObjectInfo, bool]]:
        """Returns all files in a folder and below, each with whether it is a temporary."""
        files.refresh(self._sys, self._root, f"{self._root}/{prefix}".rstrip("/"))
        return [*self._walk(prefix)]

    def _walk(self, prefix: str) -> Iterator[tuple[ObjectInfo, bool]]:
        try:
            found = self._sys.scandir(f"{self._root}/{prefix}")
        except (FileNotFoundError, NotADirectoryError):
            return
        for name, is_folder in found:
            key = f"{prefix}{name}"
            if not is_name(name) or name.startswith(_NFS_REMOVED):
                continue
            if is_folder:
                yield from self._walk(f"{key}/")
            elif (stat := self._stat(key)) is not None:
                yield ObjectInfo(key, stat.size, stat.modified), files.is_temporary(name)

    def _stat(self, key: str) -> FileStat | None:
        try:
            return self._sys.stat(f"{self._root}/{key}")
        except FileNotFoundError:  # removed since its folder was listed
            return None

    def _unlink(self, path: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            self._sys.unlink(path)

    def _fsync_if_there(self, folder: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            files.fsync_dir(self._sys, folder)

    def _now(self) -> float:
        """Returns the time by the clock of the file system."""
        temporary = files.write_temporary(self._sys, f"{self._root}/clock", [])
        try:
            return self._sys.stat(temporary).modified
        finally:
            files.discard(self._sys, temporary)


def _of_a_file(read: Callable[[], T]) -> T:
    try:
        return read()
    except (IsADirectoryError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, "a directory, or under a file") from error


def _check_end(path: str, start: int, wanted: int, count: int, size: int) -> None:
    if start > size or count < wanted:
        raise DamagedError(
            f"{path}: bytes {start} to {start + wanted} requested, but it ends at byte {size}"
        )
