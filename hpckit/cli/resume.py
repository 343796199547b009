"""`hpckit resume`. What it needs is imported when it runs: that takes longer
than the help of other commands, which the same program prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.refusal import refusing
from hpckit.cli.runpath import RunPath, submitted_run

if TYPE_CHECKING:
    from hpckit.run.directory import RunDir


def resume(
    run: RunPath,
    detach: Annotated[bool, typer.Option(help="Return as soon as it is started.")] = False,
) -> None:
    """Go on with a run from its newest checkpoint: same code, same config as it was submitted.

    Example: hpckit resume gpt-1a2b3c4d
    """
    with refusing():
        raise typer.Exit(_resume(submitted_run(run), detach))


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
