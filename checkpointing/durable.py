"""File-system steps that survive a crash at any instruction (POSIX, NFS)."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from checkpointing.layout import MANIFEST


def fsync_dir(path: Path) -> None:
    """Make the names in `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_dirs(path: Path) -> None:
    """Create `path` and its parents, durably; existing ones are left alone."""
    if path.is_dir():
        return
    make_dirs(path.parent)
    path.mkdir(exist_ok=True)
    fsync_dir(path.parent)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A new file that is durable, its name included, once the block ends without an error.

    Raises:
        FileExistsError: there is one already; nothing in a store is overwritten.
        OSError: with `path` as its file name; an error poisons the file, it must not be used.
    """
    try:
        with path.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fsync_dir(path.parent)
    except OSError as error:
        # write() and fsync() do not say which file
        raise OSError(error.errno, error.strerror, str(path)) from error


def publish(path: Path, data: bytes) -> None:
    """Create `path` with `data`, whole or not at all, by one caller only, and durably.

    link() and not rename(): rename would replace what another writer had published.

    Raises:
        FileExistsError: `path` exists.
        OSError: not written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with new_file(temporary) as file:
            file.write(data)
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_dir(path.parent)


def probe(directory: Path) -> None:
    """Check that `directory` takes what a commit needs: new files, fsync, hard links.

    Raises:
        OSError: it does not.
    """
    path = directory / f".probe-{secrets.token_hex(8)}"
    publish(path, b"")
    path.unlink()


def remove_checkpoint(directory: Path) -> None:
    """Remove a checkpoint or what is left of one; what another process removed is no error.

    The manifest goes first: a crash in between leaves an unfinished save, never a damaged
    checkpoint.
    """
    try:
        (directory / MANIFEST).unlink(missing_ok=True)
        fsync_dir(directory)
        shutil.rmtree(directory)
        fsync_dir(directory.parent)
    except FileNotFoundError:
        if directory.exists():
            raise
