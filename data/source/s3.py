"""Shards at s3:// URLs."""

import difflib
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from obstore.store import S3Store

from checkpointing.errors import StoreError
from checkpointing.storage.s3.obstore_clients import build_reader
from checkpointing.storage.s3.s3_options import S3AccessOptions
from data.errors import DataError
from data.source import object_requests
from data.source.address import masked
from data.source.piece_size import PieceSize
from data.source.protocol import FirstTag, NoRangesError, ObjectVersion, PermanentSourceError


class S3Source:
    """A `Backend` of s3://bucket/key. Options that are not given come from AWS_* and ~/.aws."""

    def __init__(self, stall_s: float, options: S3AccessOptions) -> None:
        self._stall_s = stall_s
        self._options = options
        self._client = lru_cache(self._build)
        self._sizes = PieceSize()

    def stat(self, url: str) -> ObjectVersion:
        bucket, key = _split(url)
        return object_requests.head(self._client(bucket), key)

    def read(self, url: str, start: int, size: int, tag: str | FirstTag | None) -> bytes:
        bucket, key = _split(url)
        try:
            return object_requests.read(self._client(bucket), key, start, size, tag)
        except NoRangesError as error:
            raise PermanentSourceError("the S3 server does not return ranges of objects") from error

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        bucket, key = _split(url)
        try:
            yield from object_requests.stream(self._client(bucket), key, start, tag, self._sizes)
        except NoRangesError as error:
            raise PermanentSourceError("the S3 server does not return ranges of objects") from error

    def stream_range(self, url: str, start: int, end: int, tag: str) -> Iterator[bytes]:
        bucket, key = _split(url)
        return object_requests.stream(self._client(bucket), key, start, tag, self._sizes, end)

    def _build(self, bucket: str) -> S3Store:
        try:
            return build_reader(bucket, self._options, os.environ, self._stall_s)
        except StoreError as error:
            raise PermanentSourceError(f"S3 cannot be used: {masked(str(error))}") from error


def _split(url: str) -> tuple[str, str]:
    bucket, _, key = url.partition("://")[2].partition("/")
    if not bucket or "@" in bucket or not key:
        raise PermanentSourceError(
            "an S3 URL is s3://bucket/key, without credentials; these come from AWS_* variables,"
            " ~/.aws or options"
        )
    return bucket, key


def parse_options(given: Mapping[str, Any]) -> S3AccessOptions:
    """Raises DataError for an unknown option, or a value that cannot be used; shows no value."""
    if unknown := sorted(given.keys() - S3AccessOptions.names()):
        near = difflib.get_close_matches(unknown[0], S3AccessOptions.names(), n=1)
        known = ", ".join(sorted(S3AccessOptions.names()))
        hint = f"did you mean {near[0]}?" if near else f"they are {known}"
        raise DataError(f"options of s3: unknown one among {sorted(given)}: {unknown[0]}; {hint}")
    try:
        return S3AccessOptions.parse(given)
    except StoreError as error:
        raise DataError(f"options of s3: {error}") from error
