"""Shards at http:// and https:// URLs."""

import base64
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote, urlsplit, urlunsplit

from obstore.exceptions import BaseError
from obstore.store import HTTPStore

from data.source import object_requests
from data.source.address import masked
from data.source.piece_size import PieceSize
from data.source.protocol import NoRangesError, ObjectVersion, PermanentSourceError

_CLIENTS = 64  # clients that are kept, with their connections
_PLAIN = re.compile(r"/?(?!\.{0,2}(/|$))[A-Za-z0-9._-]+(/(?!\.{0,2}(/|$))[A-Za-z0-9._-]+)*")


class HttpSource:
    """A `Backend` of http(s) URLs, signed ones included.

    All plain URLs of a host share a client. A URL with a query, or with characters that the client
    would encode differently, has a client of its own, which uses the URL unchanged.

    Args:
        stall_s: how long an answer may stop for.
        headers: sent with every request, such as an Authorization.
    """

    def __init__(self, stall_s: float, headers: Mapping[str, str]) -> None:
        self._stall_s = stall_s
        self._headers = dict(headers)
        self._client = lru_cache(_CLIENTS)(self._build)
        self._sizes = PieceSize()

    def stat(self, url: str) -> ObjectVersion:
        return object_requests.first_byte(*self._place(url))

    def read(self, url: str, start: int, size: int, tag: str | None) -> bytes:
        try:
            return object_requests.read(*self._place(url), start, size, tag)
        except NoRangesError:
            return _cut(self.stream(url, start, tag), size)

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        try:
            yield from object_requests.stream(*self._place(url), start, tag, self._sizes)
        except NoRangesError:
            whole = object_requests.stream(*self._place(url), 0, tag, self._sizes)
            yield from skipped(whole, start)

    def stream_range(self, url: str, start: int, end: int, tag: str) -> Iterator[bytes]:
        return object_requests.stream(*self._place(url), start, tag, self._sizes, end)

    def _place(self, url: str) -> tuple[HTTPStore, str]:
        base, key = divided(url)
        return self._client(base), key

    def _build(self, url: str) -> HTTPStore:
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        options = object_requests.connection(self._stall_s, parts.scheme == "http")
        headers = dict(self._headers)
        if at:
            token = base64.b64encode(unquote(user).encode()).decode()
            headers.setdefault("authorization", f"Basic {token}")
        options["default_headers"] = headers
        plain = urlunsplit((parts.scheme, host, parts.path, parts.query, ""))
        try:
            return HTTPStore.from_url(
                plain, client_options=options, retry_config={"max_retries": 0}
            )
        except (BaseError, ValueError) as error:
            raise PermanentSourceError(f"not a usable URL: {masked(str(error))}") from error


def divided(url: str) -> tuple[str, str]:
    """Return the URL that a client is made of, and the key to request from it."""
    parts = urlsplit(url)
    if parts.query or parts.fragment or _PLAIN.fullmatch(parts.path) is None:
        return url, ""
    return urlunsplit((parts.scheme, parts.netloc, "/", "", "")), parts.path.removeprefix("/")


def skipped(pieces: Iterator[bytes], start: int) -> Iterator[bytes]:
    """Yield `pieces` without their first `start` bytes."""
    for piece in pieces:
        if start < len(piece):
            yield piece[start:]
        start = max(0, start - len(piece))


def _cut(pieces: Iterator[bytes], size: int) -> bytes:
    have = bytearray()
    for piece in pieces:
        have += piece
        if len(have) >= size:
            return bytes(have[:size])
    raise PermanentSourceError(
        f"it ends {size - len(have)} bytes before the end of the requested range"
    )
