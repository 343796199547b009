"""Search paths such as PATH and PYTHONPATH of a job that is submitted from inside of another job.

The successor of a job starts with the environment of that job, to which its batch script and the
site's set-up lines have already added their folders, and adds them once more. These functions
undo that, so that a chain of any length has the search paths of its first job. Pure.
"""

from __future__ import annotations

import os
import re

PYTHON_PATH = "PYTHONPATH"
_SNAPSHOT = re.compile(r".*/submissions/\d{3,}/code/?")
_SEARCH_PATH = re.compile(r"(?!__)\w*PATH|XDG_\w+_DIRS|LD_PRELOAD")


def is_search_path(name: str) -> bool:
    """Returns whether the variable has folders or files with ":" between them, of which the first
    one that fits is used. Names that begin with "__" are records of module commands, which count
    in the same form."""
    return _SEARCH_PATH.fullmatch(name) is not None


def without_repeats(value: str) -> str:
    """Returns a search path without entries that it has further ahead already, which find
    nothing. One with an address such as s3://bucket/a is not split, as ":" is a part of that."""
    if "://" in value:
        return value
    return os.pathsep.join(dict.fromkeys(value.split(os.pathsep)))


def without_snapshots(value: str) -> str:
    """Returns a PYTHONPATH without code snapshots of any run, which no other run may import."""
    kept = (entry for entry in value.split(os.pathsep) if not _SNAPSHOT.fullmatch(entry))
    return os.pathsep.join(kept)
