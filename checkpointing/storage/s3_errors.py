"""What an answer of an S3 server means: a pure function of status and error code."""

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
_DAMAGED_ON_THE_WAY = {
    "BadDigest",
    "IncompleteBody",
    "RequestTimeout",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}
_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_REGION |= {"PermanentRedirect", "TemporaryRedirect"}


class Kind(Enum):
    """What to do about an error."""

    PASSING = auto()
    FULL = auto()
    STALE_KEYS = auto()  # other credentials may work
    ACCESS = auto()
    NO_BUCKET = auto()
    MISSING = auto()
    UNSUPPORTED = auto()  # the server does not know this kind of request
    REGION = auto()
    REFUSED = auto()


@dataclass(frozen=True)
class Answer:
    """What a server said, or that it said nothing."""

    status: int | None  # HTTP; None if there was no whole answer
    code: str = ""  # of S3
    text: str = ""  # for people

    def __str__(self) -> str:
        head = " ".join(str(part) for part in (self.status, self.code) if part)
        return ": ".join(part for part in (head, self.text) if part)


class StaleKeysError(StoreAccessError):
    """Refused, but credentials that are read anew may be taken."""


def kind_of(answer: Answer) -> Kind:
    """What to do about `answer`, which is not a success."""
    by_code = [
        (_FULL, Kind.FULL),
        (_STALE_KEYS, Kind.STALE_KEYS),
        (_ACCESS, Kind.ACCESS),
        ({"NoSuchBucket"}, Kind.NO_BUCKET),
        (_DAMAGED_ON_THE_WAY, Kind.PASSING),
        (_REGION, Kind.REGION),
        ({"NotImplemented"}, Kind.UNSUPPORTED),
    ]
    for codes, kind in by_code:
        if answer.code in codes:
            return kind
    return _by_status(answer.status)


def _by_status(status: int | None) -> Kind:
    by_status = {
        301: Kind.REGION,
        307: Kind.REGION,
        401: Kind.STALE_KEYS,
        403: Kind.ACCESS,
        404: Kind.MISSING,
        405: Kind.UNSUPPORTED,
        408: Kind.PASSING,
        409: Kind.PASSING,
        411: Kind.UNSUPPORTED,
        425: Kind.PASSING,
        429: Kind.PASSING,
        501: Kind.UNSUPPORTED,
        507: Kind.FULL,
    }
    if status is None:
        return Kind.PASSING
    return by_status.get(status, Kind.PASSING if status >= 500 else Kind.REFUSED)


def to_raise(answer: Answer, what: str) -> Exception | None:
    """None for an error that may pass, otherwise what to raise. See `Retrier`."""
    if answer.code == "RequestTimeTooSkewed":
        return StoreAccessError(f"{what}: {answer}; the clock of this machine is wrong")
    match kind_of(answer):
        case Kind.PASSING:
            return None
        case Kind.FULL:
            return StoreFullError(f"{what}: {answer}; raise the quota or prune checkpoints")
        case Kind.STALE_KEYS:
            return StaleKeysError(f"{what}: {answer}; renew the credentials")
        case Kind.ACCESS:
            return StoreAccessError(f"{what}: {answer}; check credentials and the bucket's policy")
        case Kind.NO_BUCKET:
            return StoreError(f"{what}: there is no such bucket at this endpoint; make it first")
        case Kind.MISSING:
            return FileNotFoundError(f"{what}: no such object")
        case Kind.REGION:
            return StoreError(f"{what}: {answer}; the bucket is in another region: set AWS_REGION")
        case Kind.UNSUPPORTED:
            return StoreError(f"{what}: {answer}; this server cannot do that")
        case Kind.REFUSED:
            return StoreError(f"{what}: {answer}")
