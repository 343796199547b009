"""The modules of the project that a run starts with: its entry point, or the script of its
program, and the function that evaluates its checkpoints."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from hpckit.config.spec import RunSpec
from hpckit.rundir.code_snapshot.imported_files import imported_files


def run_files(
    spec: RunSpec, root: Path, entry: str | None, foreign: Collection[str] = ()
) -> set[str]:
    """Returns the names, relative to the project in `root`, of its files that the run imports, as
    far as sources show.

    Args:
        entry: the module of the entry point, by its present name; None: there is none.
        foreign: top-level packages that are not the project's.
    """
    found = set() if entry is None else imported_files(root, entry, foreign)
    if spec.eval.entry is not None:
        found |= imported_files(root, spec.eval.entry.partition(":")[0], foreign)
    if spec.command is None:
        return found
    arguments = spec.command.arguments
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "-m" and following:
            found |= imported_files(root, following, foreign)
            found |= imported_files(root, f"{following}.__main__", foreign)
        elif word.endswith(".py"):
            found |= _script_files(root, _inside(word, spec.command.cwd, root), foreign)
    return found


def _script_files(root: Path, script: str | None, foreign: Collection[str]) -> set[str]:
    """Returns a script and what it imports, from its own folder or from the project's."""
    if script is None:
        return set()
    folder, _, name = script.removesuffix(".py").rpartition("/")
    found = imported_files(root, script.removesuffix(".py").replace("/", "."), foreign)
    beside = imported_files(root / folder, name, foreign) if folder else set()
    return found | {f"{folder}/{one}" for one in beside}


def _inside(word: str, cwd: str | None, root: Path) -> str | None:
    """Returns a script's path relative to the project, or None if it is elsewhere."""
    path = Path(os.path.normpath(Path(cwd or root, word)))
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else None
