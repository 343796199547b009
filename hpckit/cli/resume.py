"""`hpckit resume`. Its imports are made when it runs, as they take longer
than the help of other commands, which the same program prints."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import reported_errors
from hpckit.cli.common.run_argument import JsonOption, RunPath, submitted_run

if TYPE_CHECKING:
    from hpckit.rundir.directory import RunDir
    from hpckit.submit.preparation import SubmissionRequest


def resume(
    run: RunPath,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Keys or groups that do not change what is trained."
        ),
    ] = None,
    detach: Annotated[bool, typer.Option(help="Return as soon as the run is started.")] = False,
    json: JsonOption = False,
) -> None:
    """Resume a run from its newest checkpoint, with the code and config that were submitted.

    Example: hpckit resume gpt-1a2b3c4d launch.nodes=8 hang.step_s=600

    Keys that set where, how fast or how carefully the run trains (launch, cluster, elastic, retry,
    hang, health, parallel, memory, checkpoint, metrics, ...) can change, and train.steps can grow,
    also when the run is done. For another key that changes what is trained, the command prints how
    to start a new run instead.

    --json does not wait for the end. Its keys: run, path, resumed (false: it is done), submission,
    job (Slurm's number, or the process id of a run on this machine), ignored (the overrides, of a
    run that is done).
    """
    with reported_errors(json):
        status = _resume(submitted_run(run), overrides or [], detach, json)
    raise typer.Exit(status)


def _resume(run: RunDir, overrides: Sequence[str], detach: bool, json: bool) -> int:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.config.spec_parser import read_spec
    from hpckit.submit.preparation import CommandOptions, is_done, prepare
    from hpckit.submit.resume_overrides import done_lines, extension_lines, is_extended
    from hpckit.submit.submission_start import start, start_record, start_silently

    out = CommandOutput(json)
    newest = run.submission_numbers()[-1]
    is_over = is_done(run) and not is_extended(run, newest, overrides)
    wanted = None if is_over else _request(run, overrides)
    if wanted is not None:
        for line in extension_lines(run, read_spec(run.spec(newest)), wanted.spec):
            out.note(line)
    number = None
    if wanted is not None:
        (number,) = prepare([wanted], CommandOptions("hpckit resume"))
    if wanted is None or number is None:
        lines = done_lines(run, run.submission_numbers()[-1], overrides)
        out.document(start_record(run, None, None, resumed=False, ignored=list(overrides)))
        for line in lines:
            out.line(line)
        return 0
    if not json:
        return start(run, wanted.spec, number, detach)
    job = start_silently(run, wanted.spec, number)
    out.document(start_record(run, number, job, resumed=True, ignored=[]))
    return 0


def _request(run: RunDir, overrides: Sequence[str]) -> SubmissionRequest:
    """Return the request for the newest submission, with the overrides and its own code."""
    from hpckit.config.spec_parser import read_spec
    from hpckit.slurm.sbatch_variables import with_sbatch_variables
    from hpckit.submit.continuation.continuation_facts import with_continuation
    from hpckit.submit.preparation import SubmissionRequest
    from hpckit.submit.resume_overrides import amended

    number = run.submission_numbers()[-1]
    if not (run.code(number) / "hpckit").is_dir():
        raise FileNotFoundError(
            f"{run.code(number)}, the code that was submitted, no longer exists; the launch "
            "command of this run continues it with the code of the project here"
        )
    spec = amended(run, number, overrides) if overrides else read_spec(run.spec(number))
    spec, notes = with_sbatch_variables(spec, os.environ)
    spec, of_site = with_continuation(spec)
    for line in (*notes, *of_site):
        print(f"note: {line}", file=sys.stderr)
    return SubmissionRequest(run, spec, overrides, number)
