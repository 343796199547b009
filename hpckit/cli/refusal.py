"""How the commands on runs say that something cannot be done as asked."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer

REFUSED = 2
"""Exit status: not possible as asked."""


class CommandError(RuntimeError):
    """What was asked for cannot be done; one line that says why, and what to do."""


@contextmanager
def refusing() -> Iterator[None]:
    """Errors of whoever types, and of the world, are one line each on standard error."""
    from hpckit.run.lock import RunHeldError
    from hpckit.run.parse import SpecError
    from hpckit.run.queue import QueueError
    from hpckit.run.supervisor import SupervisorError

    try:
        yield
    except SpecError as error:
        raise typer.Exit(_say(error.violations)) from None
    except QueueError as error:
        raise typer.Exit(_say([f"Slurm is out of reach: {error}"])) from None
    except BrokenPipeError:  # as of `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except (CommandError, SupervisorError, RunHeldError, OSError) as error:
        raise typer.Exit(_say([str(error)])) from None


def _say(reasons: Sequence[str]) -> int:
    for reason in reasons:
        print(f"error: {reason}", file=sys.stderr)
    return REFUSED
