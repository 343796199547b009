"""Shards at http:// and https:// URLs."""

import base64
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote, urlsplit, urlunsplit

from obstore.exceptions import BaseError
from obstore.store import HTTPStore

from data.source import objects
from data.source.address import masked
from data.source.protocol import FinalError, Origin

_CLIENTS = 64  # kept: one per URL, with its connections


class HttpSource:
    """A `Source` of http(s) URLs; signed ones too.

    Args:
        stall_s: how long an answer may be silent.
        headers: sent with every request, such as an Authorization.
    """

    def __init__(self, stall_s: float, headers: Mapping[str, str]) -> None:
        self._stall_s = stall_s
        self._headers = dict(headers)
        self._client = lru_cache(_CLIENTS)(self._build)

    def stat(self, url: str) -> Origin:
        return objects.first_byte(self._client(url), "")

    def read(self, url: str, start: int, size: int, tag: str | None) -> bytes:
        try:
            return objects.read(self._client(url), "", start, size, tag)
        except objects.NoRangesError:
            return _cut(self.stream(url, start, tag), size)

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        try:
            yield from objects.stream(self._client(url), "", start, tag)
        except objects.NoRangesError:
            yield from skipped(objects.stream(self._client(url), "", 0, tag), start)

    def _build(self, url: str) -> HTTPStore:
        parts = urlsplit(url)
        user, at, host = parts.netloc.rpartition("@")
        options = objects.connection(self._stall_s, parts.scheme == "http")
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
            raise FinalError(f"not a usable URL: {masked(str(error))}") from error


def skipped(pieces: Iterator[bytes], start: int) -> Iterator[bytes]:
    """`pieces` without their first `start` bytes."""
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
    raise FinalError(f"it ends {size - len(have)} bytes before the end of what was wanted")
