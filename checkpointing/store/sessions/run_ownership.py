"""The run owner: decides who may save a run, which is the process that took it over last, and the
ones that began to save it since.

A fence ends a session that is saving. Ownership also stops a process that holds no lease at the
moment, and does not know that others have continued from its last checkpoint.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from checkpointing.errors import DamagedError, FormatError, SaveError, StoreError
from checkpointing.format import object_keys
from checkpointing.format.store_records import RunOwner, dump_owner, load_owner
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")

_KEPT = 4  # newest records that are kept, so that a listing during another takeover finds one
_MOST = 8  # records before the others are removed, because each removal makes a restore wait


def newest(store: Store, run: str) -> int:
    """Return the number of the last takeover of a run; 0 if there was none."""
    return max(_numbers(store, run), default=0)


def claim(store: Store, run: str) -> int:
    """Become the next owner of a run; return its number. Each of several concurrent callers gets
    its own.

    Raises:
        StoreError: the store is out of reach.
    """
    record = dump_owner(RunOwner(secrets.token_hex(16), whoami(), time.time()))
    earlier = _numbers(store, run)
    number = max(earlier, default=0) + 1
    while not store.storage.create(object_keys.owner(run, number), record):
        number = max(number, newest(store, run)) + 1
    store.owners[run] = number
    if len(earlier) >= _MOST:
        _forget(store, run, [each for each in earlier if each <= number - _KEPT])
    return number


def check(store: Store, run: str, number: int | None) -> None:
    """Check that no other process has taken the run over. To be called after a save was announced.

    Args:
        number: of the takeover that the saver belongs to; None: the one that this process made or,
            if it made none, found when it first began to save the run.

    Raises:
        SaveError: another process has taken the run over since.
    """
    last = newest(store, run)
    known = store.owners.setdefault(run, last) if number is None else number
    if last > known:
        by = _describe_owner(store, run, last)
        raise SaveError(
            f"another process took over the run {run!r}{by}: end this one, or "
            "restore from the run's newest checkpoint to take it back"
        )


def whoami() -> str:
    """Return host and process, for messages."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _numbers(store: Store, run: str) -> list[int]:
    listed = store.storage.list(object_keys.owners(run))
    return [parsed[1] for entry in listed if (parsed := object_keys.parse_owner(entry.key))]


def _forget(store: Store, run: str, numbers: Iterable[int]) -> None:
    """Remove the records of these owners."""
    try:
        store.storage.delete(object_keys.owner(run, number) for number in numbers)
    except StoreError as error:
        logger.warning("old owner records of run %r stay until the next takeover: %s", run, error)


def _describe_owner(store: Store, run: str, number: int) -> str:
    key = object_keys.owner(run, number)
    try:
        owner = load_owner(store.storage.get(key), key)
    except (FileNotFoundError, DamagedError, FormatError):
        return ""  # the existence of the record is what counts
    when = datetime.fromtimestamp(owner.created, UTC)
    return f" at {when:%Y-%m-%d %H:%M:%S} UTC from {owner.host}"
