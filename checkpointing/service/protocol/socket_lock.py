"""Locks an address, so that only one service serves there, and removes sockets of services that
were killed."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from checkpointing.service.protocol.socket_address import all_sockets, shown

START = ".start"
"""Suffix of the lock that a process holds while it starts a service."""


def lock_socket(path: Path) -> int | None:
    """Return the descriptor of the lock; None if another process holds it, or held it a moment
    ago."""
    fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A process that has just ended has removed its lock file, so that the next one locks
        # another file.
        if os.path.samestat(os.fstat(fd), path.stat()):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)
    return None


def remove_dead(run: str) -> None:
    """Remove the sockets of services of `run` that were killed; their logs stay."""
    for path in all_sockets():
        if not path.name.startswith(f"{shown(run)}-"):
            continue
        lock = path.with_suffix(".lock")
        if (fd := lock_socket(lock)) is not None:
            path.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
            path.with_suffix(START).unlink(missing_ok=True)  # of a process killed in between
            os.close(fd)
