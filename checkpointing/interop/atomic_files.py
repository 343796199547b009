"""Files of other formats: written under temporary names and renamed once all are durable, and read
by position."""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from checkpointing.errors import DamagedError
from checkpointing.storage import Buffer


class OutputFile:
    """A file that is being written under a temporary name, by any number of threads."""

    def __init__(self, path: Path) -> None:
        """Raises:
        OSError: the file cannot be created there.
        """
        self.path = path
        self.temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        self._fd = os.open(self.temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def write_at(self, offset: int, data: Buffer) -> None:
        """Raises:
        OSError: writing failed; the message names the file.
        """
        rest = memoryview(data)
        while len(rest):
            try:
                done = os.pwrite(self._fd, rest, offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            offset, rest = offset + done, rest[done:]

    def sync(self) -> None:
        """Make the content durable; raises as `write_at`."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def close(self) -> None:
        os.close(self._fd)


@contextmanager
def new_files(paths: Sequence[Path]) -> Iterator[list[OutputFile]]:
    """Create new files in one folder, which is created if needed. They get their names, in this
    order, once the block has ended without an error and all are durable; else they are removed.

    Raises:
        FileExistsError: one of them already exists.
        OSError: writing failed.
    """
    folder = paths[0].parent
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} already exists: choose another folder or name")
    files: list[OutputFile] = []
    try:
        try:
            for path in paths:
                files.append(OutputFile(path))
            yield files
            for file in files:
                file.sync()
        finally:
            for file in files:
                file.close()
        for file in files:
            file.temporary.rename(file.path)
    finally:
        for file in files:
            file.temporary.unlink(missing_ok=True)
    sync_folder(folder)


class InputFile:
    """A file that is read by position. A context manager."""

    def __init__(self, path: Path) -> None:
        """Raises:
        OSError: the file cannot be opened.
        """
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self._fd).st_size

    def read(self, offset: int, length: int) -> bytearray:
        """Returns `length` bytes from `offset`; raises as `read_into`."""
        if offset + length > self.size:
            raise DamagedError(
                f"{self.path}: ends at byte {self.size}, but its bytes {offset} to "
                f"{offset + length} are needed: it is cut off; copy it again"
            )
        data = bytearray(length)
        self.read_into(offset, memoryview(data))
        return data

    def read_into(self, offset: int, into: memoryview) -> None:
        """Raises:
        DamagedError: the file ends before that. OSError: reading failed; the message names the
        file.
        """
        while len(into):
            try:
                done = os.preadv(self._fd, [into], offset)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from error
            if not done:
                raise DamagedError(f"{self.path}: ends at byte {offset}: it is cut off")
            offset, into = offset + done, into[done:]

    def mapped(self, offset: int, length: int) -> mmap.mmap:
        """Maps a part of the file, from a multiple of the page size on. A context manager."""
        return mmap.mmap(self._fd, length, access=mmap.ACCESS_READ, offset=offset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable.

    Raises:
        OSError: that failed.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
