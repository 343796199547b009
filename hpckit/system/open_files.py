"""The number of files that this process may have open."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)


_raised_from: list[int] = []
"""The soft limits that this process had before it raised them."""


class OpenFilesError(RuntimeError):
    """Raised if a process may not have as many files open as it needs."""


def allow_open_files(count: int, purpose: str) -> None:
    """Raises the soft limit of this process so that it can have `count` files open.
    Children inherit it unless they call `restore_soft_limit`.

    Args:
        purpose: what needs them, for messages.

    Raises:
        OpenFilesError: the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = soft_limit(soft, hard, count)
    if limit is None:
        raise OpenFilesError(
            f"{purpose} needs {count} open files, and a process may have {hard} here: raise the "
            "hard limit on this machine (ulimit -Hn; for jobs of Slurm, LimitNOFILE of slurmd)"
        )
    if limit != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        _raised_from.append(soft)
        log.info("the limit of open files is raised from %d to %d for %s", soft, limit, purpose)


def restore_soft_limit() -> None:
    """Gives a child of this process the soft limit that this process had first: what it executes
    may use select(2), which takes no descriptor above 1,023."""
    if _raised_from:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (_raised_from[0], hard))


def soft_limit(soft: int, hard: int, count: int) -> int | None:
    """Returns the soft limit with which `count` files can be open, which is the present one if it
    is high enough; None: the hard limit is lower. Pure."""
    if soft == resource.RLIM_INFINITY or soft >= count:
        return soft
    return count if hard == resource.RLIM_INFINITY or hard >= count else None
