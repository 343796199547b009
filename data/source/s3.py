"""Shards at s3:// URLs."""

import os
from collections.abc import Iterator
from functools import lru_cache

from obstore.exceptions import BaseError
from obstore.store import S3Store

from data.source import object_requests
from data.source.address import masked
from data.source.protocol import ObjectVersion, PermanentSourceError
from data.source.s3_options import SourceS3Options, settings


class S3Source:
    """A `Backend` of s3://bucket/key. Options that are not given come from AWS_* and ~/.aws."""

    def __init__(self, stall_s: float, options: SourceS3Options) -> None:
        self._stall_s = stall_s
        self._options = options
        self._client = lru_cache(self._build)

    def stat(self, url: str) -> ObjectVersion:
        bucket, key = _split(url)
        return object_requests.head(self._client(bucket), key)

    def read(self, url: str, start: int, size: int, tag: str | None) -> bytes:
        bucket, key = _split(url)
        try:
            return object_requests.read(self._client(bucket), key, start, size, tag)
        except object_requests.NoRangesError as error:
            raise PermanentSourceError("the S3 server gives no ranges of objects") from error

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        bucket, key = _split(url)
        try:
            yield from object_requests.stream(self._client(bucket), key, start, tag)
        except object_requests.NoRangesError as error:
            raise PermanentSourceError("the S3 server gives no ranges of objects") from error

    def _build(self, bucket: str) -> S3Store:
        config, provider, bundle = settings(self._options, os.environ, bucket)
        client = object_requests.connection(
            self._stall_s, str(config.get("endpoint", "")).startswith("http:")
        )
        if bundle is not None:
            client["root_certificate"] = bundle
        try:
            return S3Store(
                bucket,
                config=config,
                client_options=client,
                retry_config={"max_retries": 0},
                credential_provider=provider,
            )
        except (BaseError, ValueError) as error:
            raise PermanentSourceError(f"S3 cannot be used: {masked(str(error))}") from error


def _split(url: str) -> tuple[str, str]:
    bucket, _, key = url.partition("://")[2].partition("/")
    if not bucket or "@" in bucket or not key:
        raise PermanentSourceError(
            "an S3 URL is s3://bucket/key, without credentials; these come from AWS_* variables,"
            " ~/.aws or options"
        )
    return bucket, key
