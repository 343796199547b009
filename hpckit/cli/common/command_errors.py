"""The errors of the commands on runs, and how they are reported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from hpckit.cli.common.exit_status import FOUND, OUT_OF_REACH, REFUSED


class CommandError(RuntimeError):
    """Raised if a command cannot be carried out; the message is one line with the reason and
    advice."""


@contextmanager
def reported_errors(json: bool = False) -> Iterator[None]:
    """Reports each expected error in the block as one line on standard error and, with `json`, also
    as a document on standard output, and exits with its status."""
    try:
        yield
    except BrokenPipeError:  # the reader has ended, as with `| head`
        from hpckit.system.output_streams import discard_output

        discard_output()
        raise typer.Exit(FOUND) from None
    except Exception as error:
        if (described := _described(error)) is None:
            raise
        reasons, status = described
    else:
        return
    _print_error(reasons, status, json)
    raise typer.Exit(status)


def _described(error: Exception) -> tuple[Sequence[str], int] | None:
    """Returns the reasons that an expected error has and the exit status, or None if it is another
    one. The modules of the errors are imported here, as a command without an error may do without
    them."""
    from hpckit.config.spec_error import NoAnswerError, SpecError
    from hpckit.rundir.lock import RunHeldError
    from hpckit.rundir.supervisor_process import SupervisorError
    from hpckit.slurm.squeue import QueueError
    from hpckit.system.os_errors import describe_error

    if isinstance(error, NoAnswerError):
        return error.violations, OUT_OF_REACH
    if isinstance(error, SpecError):
        return error.violations, REFUSED
    if isinstance(error, QueueError):
        return [f"Slurm does not answer: {error}"], OUT_OF_REACH
    if isinstance(error, OSError):
        return [describe_error(error)], REFUSED
    if isinstance(error, CommandError | SupervisorError | RunHeldError):
        return [str(error)], REFUSED
    return None


def _print_error(reasons: Sequence[str], status: int, json: bool) -> None:
    for reason in reasons:
        print(f"error: {reason}", file=sys.stderr)
    if json:
        from hpckit.cli.common.command_output import CommandOutput

        CommandOutput(json).document({"error": "\n".join(reasons), "exit": status})
