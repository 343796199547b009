"""`hpckit eval run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption, complete_run, submitted_run

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.evaluation.evaluation_job import EvaluationRequest


def run(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@STEP]",
            help="The run directory, or its name below ./runs; the checkpoint: a step, the "
            "beginning of an id, latest or best; by default latest.",
            autocompletion=complete_run,
        ),
    ],
    entry: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="The function to call, of the project here, in place of eval.entry.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Evaluate a checkpoint on this machine, and write its metrics to the store.

    Example: hpckit eval gpt-1a2b3c4d@4000

    It does what the jobs of eval.every do: it calls eval.entry of the run's newest submission, with
    the code that was copied then. A checkpoint that was evaluated before is evaluated again, and
    the mark best follows eval.metric. With --entry, the metrics of another function are added to
    those before.

    Keys of --json: run, step, id, metrics (value by name), log.
    """
    from checkpointing import CheckpointError
    from hpckit.cli.common.command_output import CommandOutput, number
    from hpckit.cli.common.store_errors import CommandUsageError
    from hpckit.evaluation.evaluation_job import EvaluationError, evaluate
    from hpckit.report.evaluation.evaluation_records import LOG

    with reported_errors(json):
        out = CommandOutput(json)
        try:
            request = _request(run, entry, out)
            metrics = evaluate(request, again=True)
        except (EvaluationError, CheckpointError, CommandUsageError) as error:
            raise CommandError(str(error)) from None
        step, log = int(request.id.partition("-")[0]), request.run.evaluation(request.id) / LOG
        out.line(f"step {step} ({request.id}) of {request.run.name}")
        for name, value in metrics.items():
            out.fact(name, number(value))
        body = {"run": request.run.name, "step": step, "id": request.id, "metrics": metrics}
        out.document({**body, "log": str(log)})


def _request(given: str, entry: str | None, out: CommandOutput) -> EvaluationRequest:
    import hpckit
    from hpckit.cli.ckpt.checkpoint_selection import choose_checkpoint
    from hpckit.cli.ckpt.store_location import opened
    from hpckit.config.spec_parser import SpecError, read_spec
    from hpckit.evaluation.evaluation_job import EvaluationRequest, with_entry
    from hpckit.rundir.directory import checkpoint_root, run_name
    from hpckit.submit.preflight.evaluation_entry import evaluation_entry_problems

    name, mark, step = given.rpartition("@")
    if not mark or Path(given).exists():
        name, step = given, "latest"
    run = submitted_run(Path(name))
    submission = run.submission_numbers()[-1]
    spec = with_entry(read_spec(run.spec(submission)), entry)
    if spec.command is not None:
        raise CommandError(
            f"{run.name} runs a program, whose checkpoints hpckit does not know how to evaluate"
        )
    if spec.eval.entry is None:
        raise CommandError(
            f"{run.name} has no eval.entry; name a function: --entry MODULE:FUNCTION"
        )
    here = [Path.cwd()] if entry is not None else []
    for place in here:
        if problems := evaluation_entry_problems(spec, place):
            raise SpecError(problems)
    with opened(checkpoint_root(spec, run), run_name(spec)) as at:
        id_ = choose_checkpoint(replace(at, directory=run.path), step, out.note).save.id
    # the code of now, which reads the run, then that of the run
    own = Path(hpckit.__file__).parents[1]
    code = (own, *here, run.project_code(submission))
    return EvaluationRequest(run, submission, spec, id_, code, is_added=entry is not None)
