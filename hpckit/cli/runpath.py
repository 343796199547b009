"""The argument RUN of the commands on runs: a directory, or a run's name below ./runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpckit.run.directory import RunDir

RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run's directory, or its name below ./runs.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead, for programs.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ROOT = Path("runs")


def submitted_run(path: Path) -> RunDir:
    """The run that is meant.

    Raises:
        FileNotFoundError: there is none, or nothing of it was submitted.
    """
    from hpckit.run.directory import find_run

    is_name = len(path.parts) == 1 and not path.exists()
    found = find_run(ROOT / path if is_name and (ROOT / path).is_dir() else path)
    if not found.submission_numbers():
        raise FileNotFoundError(f"{found.path} holds no submission; start it with launch.py")
    return found
