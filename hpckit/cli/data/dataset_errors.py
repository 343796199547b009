"""Converts errors with shards to messages and the exit status."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

from data.errors import (
    DamagedShardError,
    DataError,
    FetchError,
    IndexFileError,
    IndexingError,
    NoIndexError,
    ShardError,
)
from hpckit.cli.common.command_output import CommandOutput
from hpckit.cli.common.exit_status import OUT_OF_REACH
from hpckit.cli.common.store_errors import DAMAGED, USAGE, CommandUsageError, exit_code


def guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """Wrap a function that returns its exit status and may raise as a command for typer."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        try:
            code = command(**arguments)
        except BrokenPipeError:
            raise  # the reader has ended; typer handles it
        except (CommandUsageError, DataError, OSError) as error:
            code = status_of(error)
            out = CommandOutput(arguments["json"])
            out.note(f"error: {error}")
            out.document({"error": str(error), "exit": code})
        if code:
            raise typer.Exit(code)

    return run


def status_of(error: Exception) -> int:
    """Return the exit status. 1: a shard or an index is damaged; 2: wrong arguments; 3: the
    machine."""
    if isinstance(error, NoIndexError):
        return USAGE
    if isinstance(error, ShardError | IndexingError | IndexFileError | DamagedShardError):
        return DAMAGED
    if isinstance(error, FetchError):
        return OUT_OF_REACH
    return USAGE if isinstance(error, DataError) else exit_code(error)
