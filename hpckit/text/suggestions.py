"""Suggestions for mistyped words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Returns "did you mean ...? " with the nearest option, or "" if none is near."""
    near = difflib.get_close_matches(word, options, n=1)
    return f"did you mean {near[0]}? " if near else ""
