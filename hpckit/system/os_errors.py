"""What to say of an error of the operating system: where it was, what it was, what to do."""

from __future__ import annotations

import errno
from pathlib import Path

_TO_DO = {
    errno.ENOSPC: "make room there, or choose another folder",
    errno.EDQUOT: "make room there, or choose another folder",
    errno.EACCES: "take a folder of your own, or ask its owner",
    errno.EPERM: "take a folder of your own, or ask its owner",
    errno.EROFS: "take a folder that can be written",
}


def describe(error: OSError, place: Path | None = None) -> str:
    """One line. Where the error itself does not name a file, `place` says where it was."""
    if error.errno is None or not error.strerror:
        return str(error)
    named = error.filename2 or error.filename or place
    where = f"{named}: " if isinstance(named, str | Path) else ""
    to_do = f"; {_TO_DO[error.errno]}" if error.errno in _TO_DO else ""
    return f"{where}{error.strerror}{to_do}"
