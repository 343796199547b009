"""Messages for errors of the operating system, with the path and advice."""

from __future__ import annotations

import errno
from pathlib import Path

_ADVICE = {
    errno.ENOSPC: "free space there, or choose another folder",
    errno.EDQUOT: "free space there, or choose another folder",
    errno.EACCES: "use a folder of your own, or ask its owner",
    errno.EPERM: "use a folder of your own, or ask its owner",
    errno.EROFS: "use a folder that can be written",
    errno.EISDIR: "it has to be a file; remove or rename that folder",
    errno.ENOTDIR: "it has to be a folder; remove or rename that file",
    errno.EEXIST: "remove or rename it, or choose another name",
}


def describe_error(error: OSError, place: Path | None = None) -> str:
    """Returns a one-line message for `error`; `place` is the path in it if the error names none.
    Without a path there is no advice about one."""
    if error.errno is None or not error.strerror:
        return str(error)
    named = error.filename2 or error.filename or place
    if error.errno == errno.ENOENT and isinstance(named, str | Path):
        folder = Path(named).parent
        return f"{named} does not exist" if folder.is_dir() else f"there is no folder {folder}"
    if not isinstance(named, str | Path):
        return error.strerror
    advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
    return f"{named}: {error.strerror}{advice}"
