"""Room on a run's disk that is kept for its last words: on a disk that is full, a run could not say
why it has ended."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

RESERVE_BYTES = 64 << 10
"""A verdict and some events, with the traceback of a worker."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskReserve:
    """A file of `RESERVE_BYTES` in `folder`, that goes when it is needed."""

    def __init__(self, folder: Path) -> None:
        self._path, self._probe = folder / ".reserve", folder / f".probe-{os.getpid()}"

    def keep(self) -> None:
        """Make it, if it is not there. Where there is no room for it, that is said in the log."""
        try:
            _allocate(self._path, RESERVE_BYTES)
        except OSError as error:
            log.warning("no room is kept for the verdict: %s", error)

    def give_way(self) -> bool:
        """Whether the disk is full; then it is removed."""
        try:
            _allocate(self._probe, RESERVE_BYTES // 4)
        except OSError as error:
            if error.errno not in _FULL:
                return False
            self.drop()
            return True
        finally:
            self._probe.unlink(missing_ok=True)
        return False

    def drop(self) -> None:
        """It is not needed any more."""
        self._path.unlink(missing_ok=True)


def _allocate(path: Path, size: int) -> None:
    """Raises:
    OSError: there is no room for it, and it is as long as it could be made; or what keeps it.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(handle, 0, size)
    finally:
        os.close(handle)
