"""Classifies errors of a file system: as transient, or as one that the user has to know."""

from __future__ import annotations

import errno

from checkpointing.errors import StoreAccessError, StoreError, StoreFullError

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ACCESS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_TRANSIENT = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EINTR,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOLCK,
        errno.ENOMEM,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
    }
)
_NO_LINK = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def classify(error: Exception, what: str) -> Exception | None:
    """Returns None for a transient error, otherwise the exception to raise. See
    `RequestRetrier`."""
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, f"{what}: no such object")
    number = error.errno if isinstance(error, OSError) else None
    if number in _TRANSIENT:
        return None
    text = error.strerror if isinstance(error, OSError) else str(error)
    if number in _FULL:
        return StoreFullError(f"{what}: {text}; make space, raise the quota or prune checkpoints")
    if number in _ACCESS:
        return StoreAccessError(f"{what}: {text}; check permissions and how it is mounted")
    return StoreError(f"{what}: {text}")


def is_no_link(error: OSError) -> bool:
    """Whether link() failed because this file system has no hard links."""
    return error.errno in _NO_LINK
