"""The manifest of files that are read where they are, whose shards are ranges of their samples and
are not stored."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from data.index.column_container import Column, narrow
from data.index.manifest import Manifest
from data.index.shard.shard_index import ShardIndex
from data.index.token_files.token_file import TokenFile

KEY_DIGITS = 12
"""The key of a sample is its number in the dataset, in so many digits."""


class InPlaceManifest(Manifest, ABC):
    """The manifest of some files that are read in place, in order."""

    @abstractmethod
    def file_of(self, i: int) -> TokenFile:
        """Return the file that shard i is a part of."""

    @abstractmethod
    def index_of(self, i: int) -> ShardIndex:
        """Return the index of shard i. Raises ShardError."""

    @abstractmethod
    def content_problem(self, i: int) -> str | None:
        """Read all samples of shard i and return what is wrong with one, None if nothing. Raises
        ShardError."""

    def check(self, i: int) -> None:
        """Raise ShardError if shard i is not what it was when the dataset was opened."""
        self.file_of(i).check_same()

    def file_bytes(self, i: int) -> int:
        return self.file_of(i).bytes

    def open_shard(self, i: int, **unused: object) -> ShardIndex:
        """Return the index of shard i; the arguments are not used, as the file is read in place.

        Raises ShardError if the file has changed since it was opened.
        """
        self.check(i)
        return self.index_of(i)

    def problem(self, i: int, full: bool) -> str | None:
        """Return what is wrong with shard i, None if nothing; with `full`, all of its samples are
        read. Raises ShardError."""
        self.check(i)
        return self.content_problem(i) if full else None


def in_place_index(
    file: TokenFile,
    number: int,
    begins: npt.NDArray[np.integer[Any]],
    sizes: npt.NDArray[np.integer[Any]],
    extension: str,
    *,
    tokens: str | None = None,
    token_counts: npt.NDArray[np.uint32] | None = None,
) -> ShardIndex:
    """Return an index whose samples have one member each, without a header before it.

    Args:
        number: that of the first sample in the dataset.
        begins: the offset of each sample, shape (samples,).
        sizes: the bytes of each sample, as `begins`.
        extension: that of the members.
        tokens: how tokens were counted, as of `ShardIndex`.
        token_counts: the tokens of each sample, as `begins`; None: they were not counted.
    """
    count = len(sizes)
    places = narrow(begins)
    columns: dict[str, Any] = {
        **_number_keys(number, count),
        "begin": places,
        "first": narrow(np.arange(count + 1)),
        "offset": places,
        "size": narrow(sizes),
        "extension": np.zeros(count, np.uint8),
        "header": np.zeros(count, np.uint8),
        "extension_at": narrow([0, len(extension)]),
        "extensions": np.frombuffer(extension.encode(), np.uint8),
    }
    if token_counts is not None:
        columns["tokens"] = token_counts
    meta = {"bytes": file.bytes, "tag": file.tag, "hash": None, "tokens": tokens}
    return ShardIndex(meta, columns)


def _number_keys(first: int, count: int) -> dict[str, Column]:
    """Return the columns of the keys of an index, which are the numbers from `first` on."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    keys = np.empty((count, KEY_DIGITS), np.uint8)  # filled by columns, as a shard may be large
    for at in reversed(range(KEY_DIGITS)):
        keys[:, at] = numbers % 10 + ord("0")
        numbers //= 10
    return {"key_at": narrow(np.arange(count + 1) * KEY_DIGITS), "keys": keys.ravel()}
