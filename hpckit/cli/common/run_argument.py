"""Arguments and options of several commands: RUN, which is a directory or the name of a run below
./runs, overrides, prices and others."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpckit.rundir.directory import RunDir

ROOT = Path("runs")


def complete_run(incomplete: str) -> list[str]:
    """Return completions for the shell: names below ./runs that begin with `incomplete`."""
    return [name for name in run_names(ROOT) if name.startswith(incomplete)]


RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="The run directory, or its name below ./runs.",
        autocompletion=complete_run,
    ),
]
SiteOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDES",
        help="Overrides as for launch.py, of where to run: cluster=NAME, launch.nodes=N, "
        "launch.nproc_per_node=N.",
    ),
]
LaunchOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OVERRIDES", help="Overrides as for launch.py: group=option, key=value."
    ),
]
RootOption = Annotated[
    Path, typer.Option(help="Folder with the run directories, if RUN is omitted.")
]
NodePrice = Annotated[
    float | None, typer.Option(min=0, help="Price of a node for an hour.", show_default=False)
]
GpuPrice = Annotated[
    float | None, typer.Option(min=0, help="Price of a GPU for an hour.", show_default=False)
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of text.")
]
YesOption = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Do not ask. Needed where there is no terminal to ask on."),
]


def submitted_run(path: Path) -> RunDir:
    """Return the run that the argument names.

    Raises:
        FileNotFoundError: there is no such run, or it has no submission.
    """
    from hpckit.rundir.directory import find_run

    is_name = len(path.parts) == 1 and not path.exists()
    try:
        found = find_run(ROOT / path if is_name and (ROOT / path).is_dir() else path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; {_existing_runs(path)}") from None
    if not found.submission_numbers():
        raise FileNotFoundError(
            f"{found.path} does not contain a submission; start the run with hpckit launch"
        )
    return found


def require_root(root: Path) -> None:
    """Raise FileNotFoundError if a folder of runs that was named does not exist. The default one
    need not, as before the first run."""
    if root != ROOT and not root.is_dir():
        raise FileNotFoundError(f"--root: there is no folder {root.resolve()}")


def run_names(root: Path) -> list[str]:
    """Return the names of the runs in the folder `root`, the last changed ones first."""
    try:
        found = [path for path in root.iterdir() if (path / "submissions").is_dir()]
        found.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:  # it does not exist, or is being removed
        return []
    return [path.name for path in found]


def similar_runs(path: Path) -> list[str]:
    """Return the runs whose names are like that of `path`, three at most, as they can be typed."""
    root = _folder_of(path)
    names = run_names(root)
    typed = {name: name for name in names} | {name.rpartition("-")[0]: name for name in names}
    near = difflib.get_close_matches(path.name, typed, n=3, cutoff=0.7)
    meant = [name for name in names if name.startswith(path.name)] or [typed[one] for one in near]
    return [name if root == ROOT else str(root / name) for name in dict.fromkeys(meant[:3])]


def _folder_of(path: Path) -> Path:
    """Return the folder in which the run at `path` would be."""
    return ROOT if len(path.parts) == 1 else path.parent


def _existing_runs(path: Path) -> str:
    """Describe the existing runs, or those with a similar name."""
    if similar := similar_runs(path):
        return f"did you mean {' or '.join(similar)}?"
    root = _folder_of(path)
    names, where = run_names(root), root.resolve()
    return f"hpckit status lists the runs in {where}" if names else f"there is no run in {where}"
