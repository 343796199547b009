"""Classifies the errors of fsspec drivers. Drivers agree on little, so this uses what they have in
common: HTTP status codes, errno values and Python's exception types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from checkpointing.errors import CheckpointError, StoreAccessError, StoreError
from checkpointing.storage.exclusive_create import NoExclusiveCreateError
from checkpointing.storage.posix import posix_errors
from checkpointing.storage.retry import reason
from checkpointing.storage.s3.s3_errors import ServerAnswer, to_raise

# errors of the program or the settings, not of the network
_FINAL = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"}


def answer_of(error: Exception) -> ServerAnswer | None:
    """Returns the answer of an HTTP server that caused `error`; None if there was none."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        # botocore's form
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            said, about = response["Error"], response.get("ResponseMetadata", {})
            status = _status(about.get("HTTPStatusCode"))
            return ServerAnswer(
                status, str(said.get("Code", "")), str(said.get("Message", ""))[:300]
            )
    # without the causes of the error, because clients also give HTTP numbers to broken transfers
    for name in ("status", "status_code", "code"):
        status = _status(getattr(error, name, None))
        if status is not None:
            return ServerAnswer(status, "", reason(error))
    return None


def classify(error: Exception, what: str) -> Exception | None:
    """Returns None for a transient error, otherwise the exception to raise. See
    `RequestRetrier`."""
    if isinstance(error, CheckpointError | NoExclusiveCreateError):
        return error
    answer = answer_of(error)
    if answer is not None and answer.status is not None:
        return to_raise(answer, what)
    if any(type(link).__name__ in _NO_CREDENTIALS for link in _chain(error)):
        return StoreAccessError(f"{what}: {reason(error)}; set credentials")
    if isinstance(error, OSError):
        # drivers raise an OSError without a number for network errors
        return None if error.errno is None and _is_plain(error) else _by_number(error, what)
    if isinstance(error, _FINAL):
        return StoreError(f"{what}: {reason(error)}")
    return None


def _is_plain(error: OSError) -> bool:
    return not isinstance(error, FileNotFoundError | PermissionError | FileExistsError)


def _by_number(error: OSError, what: str) -> Exception | None:
    if isinstance(error, ConnectionError | TimeoutError):
        return None
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        return FileNotFoundError(f"{what}: no such object")
    if isinstance(error, PermissionError):
        return StoreAccessError(f"{what}: {reason(error)}; check credentials and permissions")
    return posix_errors.classify(error, what)


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(8):
        if link is None:
            return
        yield link
        link = link.__cause__ or link.__context__


def _status(found: Any) -> int | None:
    try:
        number = int(found)
    except (TypeError, ValueError):
        return None
    return number if 300 <= number <= 599 else None
