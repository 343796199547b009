"""Errors of the commands on runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

from hpckit.cli.common.exit_status import FOUND, OUT_OF_REACH, REFUSED


class CommandError(RuntimeError):
    """A command cannot be carried out; the message is one line that says why, and what to do."""


@contextmanager
def reported_errors(json: bool = False) -> Iterator[None]:
    """Errors of whoever types, and of the world, are one line each on standard error; with `json`,
    one document on standard output, too."""
    from hpckit.config.spec_parser import SpecError
    from hpckit.rundir.lock import RunHeldError
    from hpckit.rundir.supervisor_process import SupervisorError
    from hpckit.slurm.squeue import QueueError
    from hpckit.system.os_errors import describe

    try:
        yield
    except SpecError as error:
        reasons, status = error.violations, REFUSED
    except QueueError as error:
        reasons, status = [f"Slurm is out of reach: {error}"], OUT_OF_REACH
    except BrokenPipeError:  # as with `| head`: the reader has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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
