"""`hpckit fork`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption, complete_run, submitted_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpckit.rundir.directory import RunDir


def fork(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@STEP]",
            help="The run directory, or its name below ./runs; the step of a checkpoint, by "
            "default the newest.",
            autocompletion=complete_run,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="What the new run does otherwise."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is kept and what changes, and stop.")
    ] = False,
    detach: Annotated[bool, typer.Option(help="Return as soon as the run is started.")] = False,
    json: JsonOption = False,
) -> None:
    """Start a new run that continues another one from a checkpoint, with other keys.

    Example: hpckit fork gpt-1a2b3c4d@4000 optim.lr=1e-4 train.steps=6000

    It begins with the whole state of that step: parameters, optimizer, and the place in the data.
    The checkpoint is in the store of the other run and is not copied; it stays there as long as
    either run needs it. The learning rate, the schedule, the batch, the number of steps, nodes,
    parallelism and the code may change; what the state was made for may not: the model, the kind of
    optimizer, the data and its order.

    --json does not wait for the end. Its keys: run, path, forked_from (run, path, store, step, id),
    submission, job.
    """
    from checkpointing import CheckpointError
    from hpckit.rundir.code_snapshot.snapshot import CodeSnapshotError

    with reported_errors(json):
        try:
            status = _fork(run, overrides or [], dry_run, detach, json)
        except (CheckpointError, CodeSnapshotError) as error:
            raise CommandError(str(error)) from None
    raise typer.Exit(status)


def _fork(given: str, overrides: Sequence[str], dry_run: bool, detach: bool, json: bool) -> int:
    from dataclasses import asdict

    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.submit.fork.fork_request import fork_lines
    from hpckit.submit.fork.fork_submission import check_fork, prepare_fork
    from hpckit.submit.submission_start import start, start_record, start_silently

    parent, step = _named(given)
    out = CommandOutput(json)
    fork = check_fork(parent, step, overrides)
    for line in fork_lines(fork.request):
        out.note(line)
    if dry_run:
        return 0
    number = prepare_fork(fork, say=out.note)
    run, spec = fork.wanted.run, fork.request.spec
    if not json:
        out.note(f"forked from {fork.record}")
        return start(run, spec, number, detach)
    job = start_silently(run, spec, number)
    out.document(start_record(run, number, job, forked_from=asdict(fork.record)))
    return 0


def _named(given: str) -> tuple[RunDir, int | None]:
    """Return the run and the step that RUN[@STEP] names."""
    from pathlib import Path

    name, mark, step = given.rpartition("@")
    if not mark or Path(given).exists():
        return submitted_run(Path(given)), None
    if not step.isdigit():
        raise CommandError(f"{given}: after @ comes the step of a checkpoint, a whole number")
    return submitted_run(Path(name)), int(step)
