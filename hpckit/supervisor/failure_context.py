"""Adds the interrupted operation to errors, and describes errors in messages."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def failure_context(what: str) -> Iterator[None]:
    """Adds a note such as "kill what is left of it" to any error raised in this block."""
    try:
        yield
    except Exception as error:
        error.add_note(what)
        raise


def describe_failure(error: Exception) -> str:
    """Returns a line that names what failed, by the innermost `failure_context` or the place in the
    code, and the error."""
    notes: list[str] = getattr(error, "__notes__", [])
    how = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    if notes or not frames:
        return f"cannot {notes[0]}: {how}" if notes else how
    return f"{how} (at {Path(frames[-1].filename).name}:{frames[-1].lineno})"
