"""GET requests by obstore, one attempt each, for S3 and http."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, NotSupportedError

from data.source.address import masked
from data.source.piece_size import PieceSize
from data.source.protocol import (
    NOT_FOUND,
    FirstTag,
    NoRangesError,
    ObjectVersion,
    PermanentSourceError,
    RefusedError,
    TagMismatchError,
    TransientSourceError,
    check_tag,
)

if TYPE_CHECKING:
    from obstore import BytesStream, GetResult, ObjectMeta
    from obstore.store import ClientConfig, ObjectStore

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<]{1,100})</Code>")
# of S3 (a signed URL, a session token), Google and Azure
_EXPIRED = re.compile(
    r"ExpiredToken|Request has expired|signature expired|Signature not valid in the specified time"
    r"|<AuthenticationErrorDetail>Signed expiry time",
    re.IGNORECASE,
)
_WRONG_RANGE = re.compile(r"Requested \d+\.\.\d+, got|Content-Range|CONTENT_RANGE")
_PASSING = (408, 409, 425, 429)
_EPOCH = datetime.fromtimestamp(0, UTC)  # the time that obstore reports if the server gives none
_MOST = timedelta(days=7)  # the limit of a whole answer: only its pauses are limited

# obstore has one thread pool per process, which a fork loses: the child would wait forever
_used_by: int | None = None


def connection(stall_s: float, plain: bool) -> "ClientConfig":
    """Return the settings of a client: connecting and each pause in an answer take `stall_s` at
    most.

    Args:
        plain: whether http:// is allowed.
    """
    return {
        "allow_http": plain,
        "connect_timeout": timedelta(seconds=min(10.0, stall_s)),
        "read_timeout": timedelta(seconds=stall_s),
        "timeout": _MOST,
    }


def head(store: "ObjectStore", key: str) -> ObjectVersion:
    """Return the object version as a HEAD request describes it."""
    with _translated_errors():
        return _origin(obstore.head(store, key))


def first_byte(store: "ObjectStore", key: str) -> ObjectVersion:
    """Return the object version as the answer to a GET of one byte describes it, since a signed URL
    is valid for GET only."""
    with _translated_errors():
        try:
            return _origin(obstore.get(store, key, options={"range": (0, 1)}).meta)
        except NotSupportedError:
            return _origin(obstore.get(store, key).meta)


def read(
    store: "ObjectStore", key: str, start: int, size: int, tag: str | FirstTag | None
) -> bytes:
    """Read bytes [start, start + size). Raises NoRangesError."""
    if size == 0:
        return b""
    with _translated_errors():
        result = _get(store, key, start, start + size, tag)
        data = bytes(result.bytes())
    if len(data) != size:
        total = result.meta["size"]
        if start + size > total:
            raise PermanentSourceError(
                f"it ends at byte {total}, before byte {start + size} that is needed"
            )
        raise TransientSourceError(f"received {len(data)} of {size} bytes")
    return data


def stream(
    store: "ObjectStore",
    key: str,
    start: int,
    tag: str | FirstTag | None,
    sizes: PieceSize,
    end: int | None = None,
) -> Iterator[bytes]:
    """Yield the bytes from `start` to `end`, by default all that follow, in pieces of the next size
    of `sizes`. Raises NoRangesError, unless all of the object is asked for."""
    with _translated_errors():
        result = _get(store, key, start, end, tag)
        total, come = result.meta["size"] if end is None else end, start
        try:
            for piece in _timed(result.stream(min_chunk_size=sizes.next()), sizes):
                come += len(piece)
                if come > total:
                    break
                if come == total:  # noted before the last piece, after which few go on
                    sizes.ended(well=True)
                yield piece
        except (BaseError, OSError):
            sizes.ended(well=False)
            raise
    if come != total:
        sizes.ended(well=False)
        raise TransientSourceError(f"the answer ended at byte {come} of {total}")


def _timed(pieces: "BytesStream", sizes: PieceSize) -> Iterator[bytes]:
    """Yield the pieces, and note how long each was waited for."""
    began_s = time.perf_counter()
    for piece in pieces:
        sizes.came(len(piece), time.perf_counter() - began_s)
        yield piece
        began_s = time.perf_counter()


def _get(
    store: "ObjectStore", key: str, start: int, end: int | None, tag: str | FirstTag | None
) -> "GetResult":
    try:
        if end is not None:
            result = obstore.get(store, key, options={"range": (start, end)})
        elif start:
            result = obstore.get(store, key, options={"range": {"offset": start}})
        else:
            result = obstore.get(store, key)
    except NotSupportedError as error:
        raise NoRangesError from error
    except BaseError as error:
        if _WRONG_RANGE.search(str(error)):  # such as less of a range than was asked for
            raise NoRangesError from error
        if tag is not None and "status code: 416" in str(error):
            raise TagMismatchError(f"the object was replaced: it has no byte {start}") from error
        raise
    check_tag(tag, _origin(result.meta).tag)
    if result.range[0] != start:
        raise TransientSourceError(
            f"requested bytes from {start}, received them from {result.range[0]}"
        )
    return result


def _origin(meta: "ObjectMeta") -> ObjectVersion:
    tag = meta["e_tag"] or None
    if tag is None and meta["last_modified"] != _EPOCH:
        tag = f"{meta['last_modified'].timestamp():.0f}-{meta['size']}"
    return ObjectVersion(meta["size"], tag)


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Turn errors of obstore into transient or permanent ones, without the query of a URL."""
    _check_process()
    try:
        yield
    except FileNotFoundError as error:
        raise PermanentSourceError(f"{NOT_FOUND}: the object does not exist") from error
    except (BaseError, OSError) as error:
        raise classify_error(str(error), type(error).__name__) from error


def classify_error(text: str, kind: str) -> Exception:
    """Return a TransientSourceError or PermanentSourceError for obstore's message `text` of an
    error of the kind `kind`."""
    text = text.partition("\n\nDebug source:")[0]
    if "Content-Length Header missing" in text:  # it would be missing again
        return PermanentSourceError(
            "the server does not say how long the object is (Content-Length), without which it "
            "cannot be read in parts; use a server that does, or copy the object"
        )
    status, code = _STATUS.search(text), _CODE.search(text)
    if status is None:
        what = f"{kind}: {masked(text)}"
        final = kind in ("UnauthenticatedError", "PermissionDeniedError")
        return (
            PermanentSourceError(f"{what}; check the credentials")
            if final
            else TransientSourceError(what)
        )
    number = int(status[1])
    what = f"{number} {code[1]}" if code else f"status {number}"
    if number in _PASSING or (number >= 500 and number != 501):
        return TransientSourceError(what)
    is_expired = number in (400, 401, 403) and _EXPIRED.search(text) is not None
    if is_expired:
        return RefusedError(what, is_expired=True)
    advice = {401: "check the credentials", 403: "check credentials and permissions"}
    if number in advice:
        return RefusedError(f"{what}; {advice[number]}")
    return PermanentSourceError(what)


def _check_process() -> None:
    global _used_by
    _used_by = _used_by or os.getpid()
    if _used_by != os.getpid():
        raise PermanentSourceError(
            "this process was forked from one that had fetched already, which the client library "
            "does not support; start processes by 'spawn' or 'forkserver', or fork earlier"
        )
