"""Finds earlier runs of the same name, for a user who expects one of them to continue."""

from __future__ import annotations

import re
from pathlib import Path

from hpckit.config.run_identity import differences
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError, read_spec
from hpckit.rundir.directory import RunDir

_MAX = 3  # keys that are listed


def same_name_note(spec: RunSpec, run: RunDir) -> str | None:
    """Returns a line about the newest other run of this name if this run is new, or None. The
    directory's name has the identity of an experiment, so the runs do not conflict; the line tells
    the user that no earlier run continues, and why."""
    if run.submission_numbers():
        return None
    others = sorted(_others(spec.name, run), key=lambda path: path.stat().st_mtime)
    if not others:
        return None
    other = RunDir(others[-1])
    try:
        theirs = read_spec(other.spec(other.submission_numbers()[-1]))
    except (SpecError, OSError, IndexError):
        return f"note: a new run; {other.path} has the same name and another config"
    changes = [f"{key}={_shown(b)} (here {_shown(a)})" for key, a, b in differences(spec, theirs)]
    more = f" and {len(changes) - _MAX} more" if len(changes) > _MAX else ""
    return (
        f"note: a new run; {other.name} has the same name, but {', '.join(changes[:_MAX])}{more}; "
        f"hpckit resume {other.path} continues that run"
    )


def _others(name: str, run: RunDir) -> list[Path]:
    """Returns the directories of runs of this name beside that of `run`."""
    pattern = re.compile(re.escape(name) + r"-[0-9a-f]{8}")
    root = run.path.parent
    return [p for p in root.glob(f"{name}-*") if p != run.path and pattern.fullmatch(p.name)]


def _shown(value: object) -> str:
    """Returns a value as a user types it."""
    names = {None: "null", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else str(value)
