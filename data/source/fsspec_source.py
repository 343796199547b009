"""Shards at any other URL, read by the fsspec driver of its scheme, which never caches here."""

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import fsspec
from fsspec.core import url_to_fs

from data.source.protocol import (
    FirstTag,
    ObjectVersion,
    PermanentSourceError,
    TransientSourceError,
    check_tag,
)

T = TypeVar("T")

_PIECE = 8 << 20  # bytes of one request of a stream
_TAGS = (
    *("ETag", "etag", "e_tag", "content_hash", "md5Hash", "checksum", "blob_id", "hex"),
    *("mtime", "LastModified", "last_modified", "modified", "modificationTime", "last_write_time"),
)
"""What drivers call the tag or the time of a version, as in their `info`; `blob_id` is of hf://."""
_FINAL = (FileNotFoundError, IsADirectoryError, PermissionError, ImportError, ValueError)
_SCHEMES_OF_CACHES = ("filecache", "blockcache", "simplecache", "cached")


class FsspecSource:
    """A `Backend` of URLs that fsspec knows.

    Drivers may wait forever, so each call runs in a thread of its own and is abandoned after
    `stall_s`.

    Args:
        options: arguments of the driver, by scheme.
    """

    def __init__(self, stall_s: float, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._stall_s = stall_s
        self._options = {scheme: dict(given) for scheme, given in options.items()}
        self._opened = lru_cache(64)(self._open)

    def stat(self, url: str) -> ObjectVersion:
        return self._within(lambda: self._stat(url))

    def read(self, url: str, start: int, size: int, tag: str | FirstTag | None) -> bytes:
        if isinstance(tag, str):  # a first tag is not worth a request before each read
            check_tag(tag, self.stat(url).tag)
        data = self._within(lambda: self._cat(url, start, start + size))
        if len(data) != size:
            raise TransientSourceError(f"received {len(data)} of {size} bytes")
        return data

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        origin = self.stat(url)
        check_tag(tag, origin.tag)
        total = origin.bytes or 0
        while start < total:
            piece = self.read(url, start, min(_PIECE, total - start), None)
            start += len(piece)
            yield piece
        check_tag(origin.tag, self.stat(url).tag)

    def _stat(self, url: str) -> ObjectVersion:
        fs, path = self._opened(url)
        info = fs.info(path)
        size = info.get("size")
        if not isinstance(size, int):
            raise PermanentSourceError(f"the driver of {fs.protocol} does not report its size")
        tags = [str(info[name]) for name in _TAGS if info.get(name) is not None]
        return ObjectVersion(size, tags[0] if tags else None)

    def _cat(self, url: str, start: int, end: int) -> bytes:
        fs, path = self._opened(url)
        return bytes(fs.cat_file(path, start=start, end=end))

    def _open(self, url: str) -> tuple[Any, str]:
        scheme = url.partition("://")[0].lower()
        if scheme in _SCHEMES_OF_CACHES or scheme not in fsspec.available_protocols():
            raise PermanentSourceError(
                f"{scheme}:// URLs cannot be read; install the fsspec driver for it"
            )
        fs, path = url_to_fs(
            url, use_listings_cache=False, skip_instance_cache=True, **self._options.get(scheme, {})
        )
        return fs, path

    def _within(self, call: Callable[[], T]) -> T:
        """Return what `call` returns, if it does so within `stall_s`."""
        results: SimpleQueue[T | Exception] = SimpleQueue()

        def run() -> None:
            try:
                results.put(call())
            except Exception as error:  # noqa: BLE001 (drivers raise anything; the caller judges)
                results.put(error)

        threading.Thread(target=run, name="hpckit-fsspec", daemon=True).start()
        try:
            result = results.get(timeout=self._stall_s)
        except Empty as error:
            raise TransientSourceError(f"no answer within {self._stall_s:g} s") from error
        if isinstance(result, TransientSourceError | PermanentSourceError):
            raise result
        if isinstance(result, Exception):
            kind = PermanentSourceError if isinstance(result, _FINAL) else TransientSourceError
            raise kind(f"{type(result).__name__}: {result}") from result
        return result
