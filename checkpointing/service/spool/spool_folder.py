"""The folder of a run's snapshots on the node's own disk."""

from __future__ import annotations

import errno
import logging
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import ServiceError
from checkpointing.service.private_folder import PrivateFiles, check, exists, make
from checkpointing.service.spool import spool_file
from checkpointing.service.spool.spool_file import SpoolHeader
from checkpointing.storage.posix import durable_files as files

logger = logging.getLogger("checkpointing")

_NAME = re.compile(r"([0-9a-f]{8})-(\d{1,10})-(\d{1,10})\.snapshot")


@dataclass(frozen=True)
class SpoolEntry:
    """A file in the folder, as its name describes it."""

    path: Path
    generation: str  # id of the generation
    rank: int
    step: int
    bytes: int
    modified: float  # Unix time, seconds


class SpoolFolder:
    """The files of one service, for one run of a store on one node. Not thread-safe.

    Other services of the user have folders of their own beside it, so `bound` is for this run
    alone.
    """

    def __init__(self, root: Path, key: str, bound: int | None, threads: int) -> None:
        """Describe the folder; creates nothing.

        Args:
            root: the user's folder on the disk; it is created, but not its parent.
            key: key of the service, see `socket_address.service_key`.
            bound: upper bound of the bytes of all files; None: the size of the disk.
            threads: number of threads that hash.
        """
        self.root, self.folder = root, root / key
        self._bound, self._threads = bound, threads

    def files(self) -> list[SpoolEntry]:
        """Return the files, ordered by generation, rank and step; creates nothing.

        Raises:
            ServiceError: the folder belongs to another user, or cannot be read.
        """
        try:
            if not exists(self.root) or not exists(self.folder):
                return []
            check(self.root)
            check(self.folder)
            found = [_file(path) for path in sorted(self.folder.iterdir())]
        except OSError as error:
            raise ServiceError(f"cannot read the spool {self.folder}: {error}") from error
        return [file for file in found if file is not None]

    def sweep(self) -> None:
        """Remove what a service that was killed had begun to write. Raises as `files`."""
        if not self.files() and not exists(self.folder):
            return
        try:
            for path in self.folder.iterdir():
                if files.is_temporary(path.name):
                    logger.info("removed %s, which was not finished", path)
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise ServiceError(f"cannot clean the spool {self.folder}: {error}") from error

    def put(self, spooled: SpoolHeader, memory: NDArray[np.uint8], over: Iterable[str] = ()) -> int:
        """Write a snapshot; return the size of its file in bytes.

        Args:
            memory: its slot.
            over: names of files that are of no more use than this one; they are removed to make
                room if necessary, in this order.

        Raises:
            OSError: the disk is full or broken, or `bound` is reached; nothing is left behind.
            ServiceError: the folder belongs to another user.
        """
        make(self.root)
        make(self.folder)
        self._make_room(spooled, over)
        return spool_file.write(self.folder / spooled.name, spooled, memory, self._threads)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are gone already are skipped.

        Raises:
            OSError: one cannot be removed.
        """
        removed = False
        for name in names:
            with suppress(FileNotFoundError):
                (self.folder / name).unlink()
                removed = True
        if removed:
            files.fsync_dir(PrivateFiles(), str(self.folder))

    def close(self) -> None:
        """Remove the folder if it is empty."""
        try:
            self.folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                logger.warning("the spool %s is not removed: %s", self.folder, error)

    def _make_room(self, spooled: SpoolHeader, over: Iterable[str]) -> None:
        if self._bound is None:
            return
        there = {file.path.name: file.bytes for file in self.files()}
        there.pop(spooled.name, None)
        total = sum(there.values()) + spooled.bytes
        going = []
        for name in over:
            if total <= self._bound:
                break
            if name in there:
                total -= there[name]
                going.append(name)
        if total > self._bound:
            raise OSError(
                errno.EDQUOT,
                f"{total} bytes in {self.folder} are more than local_bytes={self._bound} allows",
            )
        if going:
            logger.info("%s: %s are removed to free space for %s", self.folder, going, spooled.name)
            self.remove(going)


def _file(path: Path) -> SpoolEntry | None:
    parsed = _NAME.fullmatch(path.name)
    found = path.lstat()
    if parsed is None or not stat.S_ISREG(found.st_mode):
        return None
    generation, rank, step = parsed[1], int(parsed[2]), int(parsed[3])
    return SpoolEntry(path, generation, rank, step, found.st_size, found.st_mtime)
