"""Keeps what libraries would work out again, for one process of the suite and its forks: what
OmegaConf has read of files, and the commands that Typer has built of `hpckit`'s functions.

A composition reads some thirty files, which takes two fifths of its time, and to build the commands
takes longer than what most of them do. A process of a user does each of it once; the suite would do
so a thousand times.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import IO, Any

import typer.main
import typer.testing
from omegaconf import OmegaConf

_read = OmegaConf.load
_results: dict[str | bytes, bytes] = {}
"""What this process has read a text as: bytes, as who reads it may change it."""
_build = typer.main.get_command
_built: list[Any] = []
"""The command `hpckit`, once it is built."""


def keep_results() -> None:
    """Have this process work out each of them once."""
    OmegaConf.load = staticmethod(_load)  # type: ignore[method-assign]
    vars(typer.main)["get_command"] = vars(typer.testing)["_get_command"] = _get_command


def _load(file_: str | Path | IO[Any]) -> Any:
    if isinstance(file_, str | Path):
        return _read(file_)
    begin = file_.tell()
    text = file_.read()
    if text not in _results:
        file_.seek(begin)  # by whose name an error tells its place
        _results[text] = pickle.dumps(_read(file_))
    return pickle.loads(_results[text])


def _get_command(app: typer.Typer) -> Any:
    main = sys.modules.get("hpckit.cli.main")
    if main is None or app is not vars(main).get("app"):
        return _build(app)
    if not _built:
        _built.append(_build(app))
    return _built[0]
