"""Suggestions for mistyped words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Returns the nearest option as a question followed by a blank, or nothing if none is near."""
    near = difflib.get_close_matches(word, options, n=1)
    return f"did you mean {near[0]}? " if near else ""
