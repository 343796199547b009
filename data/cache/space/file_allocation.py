"""Reservation of disk space for a file without changing its length."""

import ctypes
import errno
import os

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE of linux/falloc.h
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def reserve(fd: int, size: int) -> bool:
    """Reserve the first `size` bytes of an open file, so that a full disk fails now and not later.

    Returns False where the file system cannot do that. Raises OSError, such as ENOSPC.
    """
    if size == 0:
        return True
    while _libc.fallocate(fd, _KEEP_SIZE, 0, size) != 0:
        number = ctypes.get_errno()
        if number in _UNSUPPORTED:
            return False
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
    return True
