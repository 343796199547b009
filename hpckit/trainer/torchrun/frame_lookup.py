"""Imports of torch that do not search for the module of a frame.

torch notes of each operator that it registers by which module, file and line that happened. For
this, `inspect` looks up the module whose file has the code of the frame, and source lines that
torch does not use: it resolves the paths of all modules there are, with a system call for each
folder of each path. These are three quarters of the system calls of an import of torch, each of
which may be a request to the server of a shared file system, and a tenth of its processor time.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType, TracebackType
from typing import Any


@contextmanager
def quick_frame_lookup() -> Iterator[None]:
    """Have two functions of `inspect` answer quickly within the block: `getmodule` knows the module
    of a frame by its globals, and `getframeinfo` has no source lines unless it is asked for a
    number of them. What modules have taken of `inspect` in the block answers as before after it."""
    original_info, original_module = inspect.getframeinfo, inspect.getmodule
    is_quick = True

    def getframeinfo(
        frame: FrameType | TracebackType, context: int | None = None
    ) -> inspect.Traceback:
        lines = int(not is_quick) if context is None else context
        return original_info(frame, lines)

    def getmodule(object: Any, _filename: str | None = None) -> ModuleType | None:
        found = module_of(object) if is_quick else None
        return found or original_module(object, _filename)

    inspect.getframeinfo, inspect.getmodule = getframeinfo, getmodule
    try:
        yield
    finally:
        is_quick = False
        inspect.getframeinfo, inspect.getmodule = original_info, original_module


def module_of(frame: object) -> ModuleType | None:
    """Return the imported module that the code of a frame belongs to; None if there is none, or if
    `frame` is something else."""
    if not isinstance(frame, FrameType):
        return None
    found = sys.modules.get(str(frame.f_globals.get("__name__")))
    return found if found is not None and vars(found) is frame.f_globals else None
