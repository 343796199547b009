"""Messages for errors of the operating system, with the path and advice."""

from __future__ import annotations

import errno
from pathlib import Path

_ADVICE = {
    errno.ENOSPC: "make room there, or choose another folder",
    errno.EDQUOT: "make room there, or choose another folder",
    errno.EACCES: "take a folder of your own, or ask its owner",
    errno.EPERM: "take a folder of your own, or ask its owner",
    errno.EROFS: "take a folder that can be written",
}


def describe(error: OSError, place: Path | None = None) -> str:
    """Returns a one-line message for `error`; `place` is the path in it if the error names none."""
    if error.errno is None or not error.strerror:
        return str(error)
    named = error.filename2 or error.filename or place
    where = f"{named}: " if isinstance(named, str | Path) else ""
    advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
    return f"{where}{error.strerror}{advice}"
