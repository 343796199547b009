"""What answers and errors mean, for S3 and for drivers of fsspec."""

from __future__ import annotations

import errno

import pytest

from checkpointing.errors import StoreAccessError, StoreError, StoreFullError
from checkpointing.storage.fsspec import fsspec_errors
from checkpointing.storage.posix import posix_errors
from checkpointing.storage.s3.s3_errors import ExpiredCredentialsError, ServerAnswer, to_raise


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (None, "", None),
        (500, "InternalError", None),
        (502, "", None),
        (503, "SlowDown", None),
        (504, "", None),
        (408, "", None),
        (429, "", None),
        (400, "RequestTimeout", None),
        (400, "BadDigest", None),
        (409, "ConditionalRequestConflict", None),
        (403, "QuotaExceeded", StoreFullError),
        (507, "", StoreFullError),
        (403, "AccessDenied", StoreAccessError),
        (403, "", StoreAccessError),
        (403, "RequestTimeTooSkewed", StoreAccessError),
        (401, "", ExpiredCredentialsError),
        (403, "ExpiredToken", ExpiredCredentialsError),
        (400, "ExpiredToken", ExpiredCredentialsError),
        (None, "AccessDenied", StoreAccessError),  # of one key in a bulk delete
        (404, "NoSuchKey", FileNotFoundError),
        (404, "NoSuchBucket", StoreError),
        (301, "PermanentRedirect", StoreError),
        (400, "AuthorizationHeaderMalformed", StoreError),
        (501, "NotImplemented", StoreError),
        (411, "MissingContentLength", StoreError),
        (400, "InvalidArgument", StoreError),
    ],
)
def test_answers_of_s3(status: int | None, code: str, expected: type[Exception] | None) -> None:
    found = to_raise(ServerAnswer(status, code, "text"), "read s3://b/k")
    assert (None if found is None else type(found)) is expected
    if found is not None:
        assert "read s3://b/k" in str(found)


def test_advice() -> None:
    assert "AWS_REGION" in str(to_raise(ServerAnswer(301, "PermanentRedirect"), "x"))
    assert "clock" in str(to_raise(ServerAnswer(403, "RequestTimeTooSkewed"), "x"))
    assert "create it first" in str(to_raise(ServerAnswer(404, "NoSuchBucket"), "x"))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EIO, None),
        (errno.ESTALE, None),
        (errno.EINTR, None),
        (errno.EMFILE, None),
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EACCES, StoreAccessError),
        (errno.EROFS, StoreAccessError),
        (errno.ENOENT, FileNotFoundError),
        (errno.ENAMETOOLONG, StoreError),
    ],
)
def test_errors_of_a_file_system(number: int, expected: type[Exception] | None) -> None:
    found = posix_errors.classify(OSError(number, "text"), "write /a")
    assert (None if found is None else type(found)) is expected


class HttpError(Exception):
    """As drivers of object stores raise them."""

    def __init__(self, code: int) -> None:
        super().__init__("said the server")
        self.code = code


class OfTheNetworkError(Exception):
    """As clients raise them for broken connections."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), None),
        (ConnectionResetError(), None),
        (OSError("a driver's own"), None),
        (OSError(errno.ENOSPC, "full"), StoreFullError),
        (PermissionError("no"), StoreAccessError),
        (FileNotFoundError("gone"), FileNotFoundError),
        (OfTheNetworkError(), None),
        (HttpError(503), None),
        (HttpError(403), StoreAccessError),
        (HttpError(404), FileNotFoundError),
        (NotImplementedError(), StoreError),
        (TypeError("wrong argument"), StoreError),
        (StoreError("as it is"), StoreError),
    ],
)
def test_errors_of_drivers(error: Exception, expected: type[Exception] | None) -> None:
    found = fsspec_errors.classify(error, "read x")
    assert (None if found is None else type(found)) is expected


def test_the_answer_behind_an_error_of_s3fs() -> None:
    behind = Exception("An error occurred")
    behind.response = {  # type: ignore[attr-defined]
        "Error": {"Code": "SlowDown", "Message": "slower"},
        "ResponseMetadata": {"HTTPStatusCode": 503},
    }
    error = OSError(errno.EBUSY, "busy")
    error.__cause__ = behind
    assert fsspec_errors.answer_of(error) == ServerAnswer(503, "SlowDown", "slower")
    assert fsspec_errors.classify(error, "read x") is None
