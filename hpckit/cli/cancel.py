"""`hpckit cancel`."""

from __future__ import annotations

from typing import Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import JsonOption, RunPath, submitted_run


def cancel(
    run: RunPath,
    save: Annotated[bool, typer.Option("--save", help="Save first, without a time limit.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the end.")] = 300,
    json: JsonOption = False,
) -> None:
    """Cancel a run and its queued successor job, and return when both have ended.

    Example: hpckit cancel gpt-1a2b3c4d --save

    Without --save, hpckit resume continues from the newest checkpoint that exists. (A Slurm job is
    asked to save in any case, and has the seconds of KillWait for it.)
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.report.overview import Queue, read_overview
    from hpckit.submit.run_cancellation import CancelError, cancel_run

    with reported_errors(json):
        out, it = CommandOutput(json), read_overview(submitted_run(run), Queue())
        if not it.is_alive:
            out.document({"cancelled": False, **it.record()})
            out.line(f"{it.run.name} {it.condition}; there is nothing to cancel")
            return
        try:
            after = cancel_run(it, saves=save, within_s=timeout, say=out.note)
        except CancelError as error:
            raise CommandError(str(error)) from None
        out.document({"cancelled": True, **after.record()})
        reason = (after.verdict or {}).get("reason", "")
        out.line(f"{after.run.name} has ended: {after.word}: {reason}")
        saved = after.progress.saved_step
        out.line(f"newest checkpoint: step {saved:,}" if saved else "no checkpoint")
        out.dim(f"    hpckit resume {after.run.name}")
