"""Converts errors to messages and the exit status, so that no user sees a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from checkpointing.errors import CheckpointError, DamagedError, SaveError, StoreError
from hpckit.cli.common.command_output import CommandOutput
from hpckit.cli.common.exit_status import FOUND, OUT_OF_REACH, REFUSED
from hpckit.system.os_errors import describe_error

DAMAGED, USAGE = FOUND, REFUSED


class CommandUsageError(Exception):
    """Raised if the arguments are invalid, or name something that does not exist; the text gives
    advice."""


Command = Callable[..., int | None]


def guard(
    expected: tuple[type[Exception], ...], status_of: Callable[[Exception], int]
) -> Callable[[Command], Callable[..., None]]:
    """Return a decorator that makes a command for typer of a function which returns its exit status
    and may raise.

    Args:
        expected: the errors that are reported as one line.
        status_of: returns the exit status of one of them.
    """

    def guarded(command: Command) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            try:
                code = command(**arguments)
            except BrokenPipeError:
                raise  # the reader has ended; typer handles it
            except expected as error:
                code = status_of(error)
                out = CommandOutput(arguments["json"])
                said = describe_error(error) if isinstance(error, OSError) else str(error)
                out.note(f"error: {said}")
                out.document({"error": said, "exit": code})
            if code:
                raise typer.Exit(code)

        return run

    return guarded


def repair_advice(place: str) -> str:
    """Return advice on damage that was just reported."""
    return (
        f"next: `hpckit ckpt repair {place}` looks for intact copies of what is damaged (--from "
        "names other stores to look in)"
    )


def exit_code(error: Exception) -> int:
    """Return the exit status. 1: damage; 2: wrong arguments; 3: the store or the machine."""
    if isinstance(error, DamagedError):
        return DAMAGED
    if isinstance(error, StoreError | SaveError):
        return OUT_OF_REACH
    usage = (CommandUsageError, CheckpointError)
    files = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError)
    return USAGE if isinstance(error, (*usage, *files, PermissionError)) else OUT_OF_REACH


guarded = guard((CommandUsageError, CheckpointError, OSError), exit_code)
"""Makes a command on checkpoints."""
