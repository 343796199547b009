"""The location of a worker's error: the place in the user's code that its traceback names."""

from __future__ import annotations

import re
from pathlib import Path

_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_OURS = ("hpckit/", "checkpointing/", "data/")


def find_error_line(traceback: str, code: Path) -> str | None:
    """Return `file:line, in function` of the most relevant frame: the last one of the user's code
    in the code snapshot `code`, else the last one in the snapshot, else the last one. Files of the
    snapshot are given by their path in it. It is None if there is no frame."""
    frames = [(_inside(m[1], code), m[1], m[2], m[3]) for m in _FRAME.finditer(traceback)]
    users = [frame for frame in frames if frame[0] and not frame[0].startswith(_OURS)]
    snapshot = [frame for frame in frames if frame[0]]
    if not (found := users or snapshot or frames):
        return None
    inside, path, line, function = found[-1]
    return f"{inside or path}:{line}, in {function}"


def _inside(path: str, code: Path) -> str | None:
    """Return the path below the snapshot, which may have another path on other machines."""
    try:
        return str(Path(path).relative_to(code))
    except ValueError:
        _, mark, inside = path.partition(f"/submissions/{code.parent.name}/code/")
        return inside if mark else None
