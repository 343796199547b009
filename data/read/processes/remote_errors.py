"""Errors that are sent from one process to another, with their causes and tracebacks."""

import pickle
import traceback
from typing import NamedTuple

from data.errors import DataError

_MOST = 8  # causes of causes


class RemoteErrorRecord(NamedTuple):
    """An error as plain values."""

    pickled: bytes | None
    """The pickled error; None if it cannot be pickled."""
    kind: str
    text: str
    trace: str
    """Its traceback, as Python prints it; empty if it was never raised."""
    cause: "RemoteErrorRecord | None"


def record_error(error: BaseException, most: int = _MOST) -> RemoteErrorRecord:
    """Return the record of an error, to be sent."""
    cause = error.__cause__
    trace = "".join(traceback.format_tb(error.__traceback__))
    return RemoteErrorRecord(
        _pickled(error),
        f"{type(error).__module__}.{type(error).__qualname__}",
        _text(error),
        trace,
        record_error(cause, most - 1) if cause is not None and most > 0 else None,
    )


def rebuild_error(record: RemoteErrorRecord, where: str) -> BaseException:
    """Return the error, of its own type if possible, with a note of where it came from.

    Args:
        where: describes the process that it came from.
    """
    error = _loaded(record)
    if record.trace:
        error.add_note(f"In {where}:\n{record.trace.rstrip()}")
    if record.cause is not None:
        error.__cause__ = rebuild_error(record.cause, where)
    return error


def _pickled(error: BaseException) -> bytes | None:
    try:
        return pickle.dumps(error, 5)
    except Exception:  # noqa: BLE001 (the user's class may raise anything; its text is sent)
        return None


def _loaded(record: RemoteErrorRecord) -> BaseException:
    problem = f"{record.kind}: {record.text}"
    if record.pickled is None:
        return DataError(problem)
    try:
        found = pickle.loads(record.pickled)  # noqa: S301 (of a process that this one started)
    except Exception:  # noqa: BLE001 (as above: many classes cannot be made of their own args)
        return DataError(problem)
    return found if isinstance(found, BaseException) else DataError(problem)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 (as above)
        return f"its message is not available: {type(broken).__name__}"
