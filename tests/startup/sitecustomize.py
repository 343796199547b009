"""What each Python process of the suite imports as it starts: byte code for code snapshots, and for
fork servers and evaluations the imports that others have done.

Each run imports hpckit from a snapshot of its own, so that its processes would compile some
hundred files before they do anything. A copy in a snapshot has the size and the time of change of
its source, by which Python decides whether byte code is of a file; so that of this checkout is as
good, and is written if there is none. What differs has byte code of its own.
"""

from __future__ import annotations

import os
import sys

_IMPORTS = vars(sys.modules["_frozen_importlib_external"])
"""Of the module that finds byte code, which has no other name for it."""
_CHECKOUT = __file__.removesuffix("tests/startup/sitecustomize.py")
_PACKAGES = ("hpckit/", "checkpointing/", "data/")
_FORK_SERVER = "hpckit.trainer.torchrun.fork_server"
_EVALUATION = "hpckit.evaluation.evaluation_worker"
_path_of_byte_code = _IMPORTS["cache_from_source"]


def _cache_from_source(path: str, *args: object, **options: object) -> str:
    found: str = _path_of_byte_code(_source_of(path), *args, **options)
    return found


def _source_of(path: str) -> str:
    """The file of this checkout that has been copied to this path; the path itself if none was."""
    _, _, inside = path.rpartition("/submissions/")
    number, _, name = inside.partition("/code/")
    if not (number.isdigit() and name.startswith(_PACKAGES)):
        return path
    state = _state(path)
    return _CHECKOUT + name if state and state == _state(_CHECKOUT + name) else path


def _state(path: str) -> tuple[float, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 (each process would import pathlib)
    except OSError:
        return None
    return found.st_mtime, found.st_size


_IMPORTS["cache_from_source"] = _cache_from_source

if sys.orig_argv[1:3] == ["-m", _FORK_SERVER] or sys.orig_argv[1:4] == ["-u", "-m", _EVALUATION]:
    import shared_imports  # type: ignore[import-not-found]  # beside this file

    shared_imports.take_part()
