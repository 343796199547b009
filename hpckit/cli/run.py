"""`hpckit resume` and `hpckit report`. What they need is imported when they run: it takes longer
than the help of other commands, which the same program prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hpckit.run.directory import RunDir

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The run's directory.")]


def resume(
    run: RunPath,
    detach: Annotated[bool, typer.Option(help="Return as soon as it is started.")] = False,
) -> None:
    """Go on with a run from its newest checkpoint: same code, same config as it was submitted."""
    from hpckit.launch.main import refuse
    from hpckit.run.lock import RunHeldError
    from hpckit.run.parse import SpecError

    try:
        raise typer.Exit(_resume(_newest(run), detach))
    except SpecError as error:
        raise typer.Exit(refuse(error.violations)) from None
    except (OSError, RunHeldError) as error:
        raise typer.Exit(refuse([str(error)])) from None


def report(run: RunPath) -> None:
    """Tell what a run has been through, and draw its loss curve."""
    from rich.console import Console

    from hpckit.launch.main import refuse, show_report
    from hpckit.run.parse import SpecError

    try:
        show_report(_newest(run), Console())
    except SpecError as error:
        raise typer.Exit(refuse(error.violations)) from None
    except OSError as error:
        raise typer.Exit(refuse([str(error)])) from None


def _newest(path: Path) -> RunDir:
    from hpckit.run.directory import find_run

    found = find_run(path)
    if not found.submission_numbers():
        raise FileNotFoundError(f"{found.path} holds no submission; start it with launch.py")
    return found


def _resume(run: RunDir, detach: bool) -> int:
    from hpckit.launch.main import start
    from hpckit.run.directory import lock_paths
    from hpckit.run.durable import read_json
    from hpckit.run.lock import hold_all
    from hpckit.run.parse import read_spec

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
    return start(run, spec, number, detach)
