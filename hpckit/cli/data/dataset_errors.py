"""Converts errors with shards to messages and the exit status."""

from __future__ import annotations

from data.errors import (
    DamagedShardError,
    DataError,
    FetchError,
    IndexFileError,
    IndexingError,
    NoIndexError,
    ShardError,
)
from hpckit.cli.common.exit_status import OUT_OF_REACH
from hpckit.cli.common.store_errors import DAMAGED, USAGE, CommandUsageError, exit_code, guard


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


guarded = guard((CommandUsageError, DataError, OSError), status_of)
"""Makes a command on datasets."""
