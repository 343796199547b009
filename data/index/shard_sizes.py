"""Compares the sizes of shards with what a manifest says of them, without numpy."""

from collections.abc import Sequence
from typing import Protocol

from data.errors import ShardError
from data.index import shard_access


class ListedShards(Protocol):
    """The shards that a manifest lists."""

    def __len__(self) -> int: ...

    @property
    def urls(self) -> Sequence[str]:
        """Their absolute paths or URLs."""

    def file_bytes(self, i: int) -> int:
        """Return the size that the file of shard i had when it was indexed."""


def resized(shards: ListedShards, most: int = 64) -> str | None:
    """Describe a shard whose size differs from the manifest, which is of other shards or older.

    Only the sizes of files are compared, of `most` shards that are spread over the dataset; None if
    all agree.
    """
    numbers = range(0, len(shards), max(1, len(shards) // most))
    for i in (number for number in numbers if not shard_access.is_url(shards.urls[number])):
        url, stated = shards.urls[i], shards.file_bytes(i)
        try:
            size, _ = shard_access.stat(url, None)
        except ShardError as error:
            return str(error)
        if size != stated:
            return f"{url} {other_size(size, stated)}"
    return None


def other_size(size: int, stated: int) -> str:
    """Describe a size that differs from the one that was stated."""
    return f"has {size} bytes, but had {stated} when it was indexed"
