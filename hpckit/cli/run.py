"""`hpckit resume` and `hpckit report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hpckit.launch.main import refuse, show_report, start_and_follow
from hpckit.run.directory import RunDir, find_run, lock_paths
from hpckit.run.durable import read_json
from hpckit.run.lock import RunHeldError, hold_all
from hpckit.run.parse import SpecError, read_spec

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")]


def resume(
    run: RunPath,
    detach: Annotated[bool, typer.Option(help="Return as soon as it is started.")] = False,
) -> None:
    """Go on with a run from its newest checkpoint: same code, same config as it was submitted."""
    try:
        raise typer.Exit(_resume(_newest(run), detach))
    except SpecError as error:
        raise typer.Exit(refuse(error.violations)) from None
    except (OSError, RunHeldError) as error:
        raise typer.Exit(refuse([str(error)])) from None


def report(run: RunPath) -> None:
    """Tell what a run has been through, and draw its loss curve."""
    try:
        show_report(_newest(run), Console())
    except SpecError as error:
        raise typer.Exit(refuse(error.violations)) from None
    except OSError as error:
        raise typer.Exit(refuse([str(error)])) from None


def _newest(path: Path) -> RunDir:
    found = find_run(path)
    if not found.submission_numbers():
        raise FileNotFoundError(f"{found.path} holds no submission; start it with launch.py")
    return found


def _resume(run: RunDir, detach: bool) -> int:
    verdict = read_json(run.verdict)
    if verdict and verdict.get("kind") == "done":
        print(f"{run.name} is done; nothing to resume")
        return 0
    number = run.submission_numbers()[-1]
    spec = read_spec(run.spec(number))
    if not (run.code(number) / "hpckit").is_dir():
        raise FileNotFoundError(f"{run.code(number)} is gone, the code that was submitted")
    with hold_all(lock_paths(spec, run), "hpckit resume"):
        pass  # nobody else has it; the supervisor takes it for itself
    return start_and_follow(run, number, spec.train.steps, detach)
