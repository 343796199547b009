"""Reserves space on a run's disk for its last records, so that a run can record why it ended even
on a full disk."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

RESERVE_BYTES = 64 << 10
"""Enough for a verdict and some events, with the traceback of a worker."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskReserve:
    """A file of `RESERVE_BYTES` in `folder` that is removed when its space is needed."""

    def __init__(self, folder: Path) -> None:
        self._path, self._probe = folder / ".reserve", folder / f".probe-{os.getpid()}"

    def allocate(self) -> None:
        """Creates the file unless it exists. If there is no room for it, logs a warning."""
        try:
            _allocate(self._path, RESERVE_BYTES)
        except OSError as error:
            log.warning("cannot reserve disk space for the verdict: %s", error)

    def release_if_full(self) -> bool:
        """Returns whether the disk is full, and removes the file if it is."""
        try:
            _allocate(self._probe, RESERVE_BYTES // 4)
        except OSError as error:
            if error.errno not in _FULL:
                return False
            self.remove()
            return True
        finally:
            self._probe.unlink(missing_ok=True)
        return False

    def remove(self) -> None:
        """Removes the file."""
        self._path.unlink(missing_ok=True)


def _allocate(path: Path, size: int) -> None:
    """Allocates the file on disk.

    Raises:
        OSError: there is no room, and the file is as long as it could be made; or another error.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)
