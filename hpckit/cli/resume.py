"""`hpckit resume`. What it needs is imported when it runs: that takes longer
than the help of other commands, which the same program prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import reported_errors
from hpckit.cli.common.run_argument import JsonOption, RunPath, submitted_run

if TYPE_CHECKING:
    from hpckit.config.spec import RunSpec
    from hpckit.rundir.directory import RunDir


def resume(
    run: RunPath,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Keys or groups that are no part of what is trained."
        ),
    ] = None,
    detach: Annotated[bool, typer.Option(help="Return as soon as it is started.")] = False,
    json: JsonOption = False,
) -> None:
    """Go on with a run from its newest checkpoint: same code and config as it was submitted.

    Example: hpckit resume gpt-1a2b3c4d launch.nodes=8 hang.step_s=600

    Keys that say where, how fast or how carefully (launch, cluster, elastic, retry, hang, health,
    parallel, memory, checkpoint, metrics, ...) can be others from now on; of one that changes what
    is trained it says what to type for a new run.

    --json does not wait for the end. Its keys: run, path, resumed (false: it is done), submission,
    job (Slurm's number; of a run of this machine, its process).
    """
    with reported_errors(json):
        status = _resume(submitted_run(run), overrides or [], detach, json)
    raise typer.Exit(status)


def _resume(run: RunDir, overrides: Sequence[str], detach: bool, json: bool) -> int:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.submit.launch_command import is_done, start, start_quietly
    from hpckit.submit.start_record import start_record

    out = CommandOutput(json)
    if is_done(run):
        out.document(start_record(run, None, None, resumed=False))
        out.line(f"{run.name} is done; nothing to resume")
        return 0
    spec, number = _submission(run, overrides)
    if not json:
        return start(run, spec, number, detach)
    out.document(start_record(run, number, start_quietly(run, spec, number), resumed=True))
    return 0


def _submission(run: RunDir, overrides: Sequence[str]) -> tuple[RunSpec, int]:
    """Return the newest submission, or a new one that has the overrides and the code of that, while
    no supervisor is active."""
    from hpckit.config.spec_parser import read_spec
    from hpckit.rundir.directory import lock_paths
    from hpckit.rundir.lock import hold_all
    from hpckit.submit.launch_command import require_unqueued
    from hpckit.submit.prepare import prepare_amended
    from hpckit.submit.resume_overrides import amended

    number = run.submission_numbers()[-1]
    if not (run.code(number) / "hpckit").is_dir():
        raise FileNotFoundError(f"{run.code(number)} is gone, the code that was submitted")
    spec = amended(run, number, overrides) if overrides else read_spec(run.spec(number))
    with hold_all(lock_paths(spec, run), "hpckit resume"):
        require_unqueued(run, spec)
        if overrides:
            number = prepare_amended(run, spec, overrides, number)
    return spec, number
