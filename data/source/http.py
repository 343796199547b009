"""Shards at http:// and https:// URLs."""

import base64
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from urllib.parse import unquote, urlsplit, urlunsplit

from obstore.exceptions import BaseError
from obstore.store import HTTPStore

from data.source import object_requests
from data.source.address import masked
from data.source.piece_size import PieceSize
from data.source.protocol import FirstTag, NoRangesError, ObjectVersion, PermanentSourceError
from data.source.signed_urls import Sign, SignedUrls

_CLIENTS = 64  # clients that are kept, with their connections
_PLAIN = re.compile(r"/?(?!\.{0,2}(/|$))[A-Za-z0-9._-]+(/(?!\.{0,2}(/|$))[A-Za-z0-9._-]+)*")


class HttpSource:
    """A `Backend` of http(s) URLs, signed ones included.

    All plain URLs of a host share a client. A URL with a query, or with characters that the client
    would encode differently, has a client of its own, which uses the URL unchanged.

    Args:
        stall_s: how long an answer may stop for.
        headers: sent with every request, such as an Authorization.
        sign: returns the URL to request for the URL of a shard; see `SignedUrls`.
    """

    def __init__(
        self, stall_s: float, headers: Mapping[str, str], sign: Sign | None = None
    ) -> None:
        self._stall_s = stall_s
        self._headers = dict(headers)
        self._signed = None if sign is None else SignedUrls(sign)
        self._client = lru_cache(_CLIENTS)(self._build)
        self._sizes = PieceSize()

    def stat(self, url: str) -> ObjectVersion:
        with self._place(url) as place:
            return object_requests.first_byte(*place)

    def read(self, url: str, start: int, size: int, tag: str | FirstTag | None) -> bytes:
        try:
            with self._place(url) as place:
                return object_requests.read(*place, start, size, tag)
        except NoRangesError:
            return _cut(self.stream(url, start, tag), size)

    def stream(self, url: str, start: int, tag: str | FirstTag | None) -> Iterator[bytes]:
        with self._place(url) as place:
            try:
                yield from object_requests.stream(*place, start, tag, self._sizes)
            except NoRangesError:
                whole = object_requests.stream(*place, 0, tag, self._sizes)
                yield from skipped(whole, start)

    def stream_range(self, url: str, start: int, end: int, tag: str) -> Iterator[bytes]:
        with self._place(url) as place:
            yield from object_requests.stream(*place, start, tag, self._sizes, end)

    @contextmanager
    def _place(self, url: str) -> Iterator[tuple[HTTPStore, str]]:
        """Yield the client and the key to request of it, for one attempt."""
        with self._signed.used(url) if self._signed is not None else nullcontext(url) as asked:
            base, key = divided(asked)
            yield self._client(base), key

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
