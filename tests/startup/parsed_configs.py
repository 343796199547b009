"""Keeps what OmegaConf has read of files, for the compositions of one process and of its forks.

Each composition reads some thirty files, most of them hpckit's own, and to parse these takes two
fifths of its time. A command composes once; the suite does so a thousand times.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

_read = OmegaConf.load
_results: dict[str | bytes, bytes] = {}
"""What this process has read a text as: bytes, as who reads it may change it."""


def keep_parsed() -> None:
    """Have this process parse each text once."""
    OmegaConf.load = staticmethod(_load)  # type: ignore[method-assign, assignment]


def _load(file_: str | Path | IO[Any]) -> Any:
    if isinstance(file_, str | Path):
        return _read(file_)
    begin = file_.tell()
    text = file_.read()
    if text not in _results:
        file_.seek(begin)  # by whose name an error tells its place
        _results[text] = pickle.dumps(_read(file_))
    return pickle.loads(_results[text])
