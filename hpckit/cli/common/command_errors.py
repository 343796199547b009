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
    from hpckit.config.spec_parser import SpecError
    from hpckit.rundir.lock import RunHeldError
    from hpckit.rundir.supervisor_process import SupervisorError
    from hpckit.slurm.squeue import QueueError
    from hpckit.system.os_errors import describe
    from hpckit.system.output_streams import discard_output

    try:
        yield
    except SpecError as error:
        reasons, status = error.violations, REFUSED
    except QueueError as error:
        reasons, status = [f"Slurm does not answer: {error}"], OUT_OF_REACH
    except BrokenPipeError:  # the reader has ended, as with `| head`
        discard_output()
        raise typer.Exit(FOUND) from None
    except OSError as error:
        reasons, status = [describe(error)], REFUSED
    except (CommandError, SupervisorError, RunHeldError) as error:
        reasons, status = [str(error)], REFUSED
    else:
        return
    _print_error(reasons, status, json)
    raise typer.Exit(status)


def _print_error(reasons: Sequence[str], status: int, json: bool) -> None:
    for reason in reasons:
        print(f"error: {reason}", file=sys.stderr)
    if json:
        from hpckit.cli.common.command_output import CommandOutput

        CommandOutput(json).document({"error": "\n".join(reasons), "exit": status})
