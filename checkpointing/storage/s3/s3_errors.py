"""Classifies the answer of an S3 server: a pure function of status and error code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from checkpointing.errors import StoreAccessError, StoreError, StoreFullError

_FULL = {"QuotaExceeded", "InsufficientStorage", "StorageFull", "XMinioStorageFull"}
_STALE_KEYS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_ACCESS = {"AccessDenied", "AccountProblem", "AllAccessDisabled", "RequestTimeTooSkewed"}
_CORRUPTED_IN_TRANSIT = {
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}
_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_REGION |= {"PermanentRedirect", "TemporaryRedirect"}


class S3ErrorKind(Enum):
    """What to do about an error."""

    PASSING = auto()
    FULL = auto()
    STALE_KEYS = auto()  # other credentials may be accepted
    ACCESS = auto()
    NO_BUCKET = auto()
    MISSING = auto()
    UNSUPPORTED = auto()  # the server does not support this kind of request
    REGION = auto()
    REFUSED = auto()


@dataclass(frozen=True)
class ServerAnswer:
    """The answer of a server, or that there was none."""

    status: int | None  # HTTP status; None if there was no complete answer
    code: str = ""  # S3's error code
    text: str = ""  # for messages

    def __str__(self) -> str:
        head = " ".join(str(part) for part in (self.status, self.code) if part)
        return ": ".join(part for part in (head, self.text) if part)


class ExpiredCredentialsError(StoreAccessError):
    """Access was refused, but credentials that are read again may be accepted."""


def kind_of(answer: ServerAnswer) -> S3ErrorKind:
    """Returns what to do about `answer`, which is not a success."""
    by_code = [
        (_FULL, S3ErrorKind.FULL),
        (_STALE_KEYS, S3ErrorKind.STALE_KEYS),
        (_ACCESS, S3ErrorKind.ACCESS),
        ({"NoSuchBucket"}, S3ErrorKind.NO_BUCKET),
        (_CORRUPTED_IN_TRANSIT, S3ErrorKind.PASSING),
        (_REGION, S3ErrorKind.REGION),
        ({"NotImplemented"}, S3ErrorKind.UNSUPPORTED),
    ]
    for codes, kind in by_code:
        if answer.code in codes:
            return kind
    return _by_status(answer.status)


def _by_status(status: int | None) -> S3ErrorKind:
    by_status = {
        301: S3ErrorKind.REGION,
        307: S3ErrorKind.REGION,
        401: S3ErrorKind.STALE_KEYS,
        403: S3ErrorKind.ACCESS,
        404: S3ErrorKind.MISSING,
        405: S3ErrorKind.UNSUPPORTED,
        408: S3ErrorKind.PASSING,
        409: S3ErrorKind.PASSING,
        411: S3ErrorKind.UNSUPPORTED,
        425: S3ErrorKind.PASSING,
        429: S3ErrorKind.PASSING,
        501: S3ErrorKind.UNSUPPORTED,
        507: S3ErrorKind.FULL,
    }
    if status is None:
        return S3ErrorKind.PASSING
    return by_status.get(status, S3ErrorKind.PASSING if status >= 500 else S3ErrorKind.REFUSED)


def to_raise(answer: ServerAnswer, what: str) -> Exception | None:
    """Returns None for a transient error, otherwise the exception to raise. See
    `RequestRetrier`."""
    if answer.code == "RequestTimeTooSkewed":
        return StoreAccessError(f"{what}: {answer}; the clock of this machine is wrong")
    match kind_of(answer):
        case S3ErrorKind.PASSING:
            return None
        case S3ErrorKind.FULL:
            return StoreFullError(f"{what}: {answer}; raise the quota or prune checkpoints")
        case S3ErrorKind.STALE_KEYS:
            return ExpiredCredentialsError(f"{what}: {answer}; renew the credentials")
        case S3ErrorKind.ACCESS:
            return StoreAccessError(f"{what}: {answer}; check credentials and the bucket's policy")
        case S3ErrorKind.NO_BUCKET:
            return StoreError(
                f"{what}: the bucket does not exist at this endpoint; create it first"
            )
        case S3ErrorKind.MISSING:
            return FileNotFoundError(f"{what}: no such object")
        case S3ErrorKind.REGION:
            return StoreError(f"{what}: {answer}; the bucket is in another region: set AWS_REGION")
        case S3ErrorKind.UNSUPPORTED:
            return StoreError(f"{what}: {answer}; this server does not support the request")
        case S3ErrorKind.REFUSED:
            return StoreError(f"{what}: {answer}")
