"""From the members of a tar to its samples, by webdataset's rule, as columns."""

from array import array
from pathlib import Path

import numpy as np

from data.errors import ShardError
from data.indexing.columns import Column, narrow
from data.naming import RESERVED_EXTENSIONS, split_name


class Grouping:
    """Gathers members into samples; its `add` is the sink of a `TarWalk`.

    Consecutive members of one key are a sample; names without an extension and metadata are
    passed over, as webdataset does. Raises ShardError for a key that comes back after others, an
    extension that is twice in a sample, and a reserved one: webdataset would fail in mid-epoch.
    """

    def __init__(self, shard: Path | str) -> None:
        self._shard = shard
        self._key: str | None = None
        self._keys: dict[str, None] = {}
        self._present: list[int] = []  # extensions of the sample at hand
        self._extensions: dict[str, int] = {}
        self._begin, self._first = array("Q"), array("Q")
        self._offset, self._size = array("Q"), array("Q")
        self._extension, self._header = array("Q"), array("Q")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, name: str, start: int, offset: int, size: int, header: int) -> None:
        """The next regular file of the tar."""
        split = split_name(name)
        if split is None:
            return
        key, extension = split
        number = self._extensions.get(extension)
        if number is None:
            number = self._new_extension(name, extension, start)
        if key == self._key:
            if number in self._present:
                problem = f"{name!r}: extension {extension!r} occurs twice in its sample"
                raise ShardError(self._shard, start, problem)
            self._present.append(number)
        else:
            self._new_sample(name, key, number, start)
        self._offset.append(offset)
        self._size.append(size)
        self._extension.append(number)
        self._header.append(header)

    def columns(self) -> dict[str, Column]:
        """The columns of a `ShardIndex`."""
        key_at, keys = _texts(self._keys)
        extension_at, extensions = _texts(self._extensions)
        return {
            "begin": narrow(self._begin),
            "first": narrow([*self._first, len(self._offset)]),
            "offset": narrow(self._offset),
            "size": narrow(self._size),
            "extension": narrow(self._extension),
            "header": narrow(self._header),
            "key_at": key_at,
            "keys": keys,
            "extension_at": extension_at,
            "extensions": extensions,
        }

    def _new_sample(self, name: str, key: str, extension: int, start: int) -> None:
        if key in self._keys:
            problem = f"{name!r} comes back to key {key!r} after other samples; sort the tar"
            raise ShardError(self._shard, start, problem)
        self._keys[key] = None
        self._key = key
        self._present = [extension]
        self._begin.append(start)
        self._first.append(len(self._offset))

    def _new_extension(self, name: str, extension: str, start: int) -> int:
        if extension in RESERVED_EXTENSIONS:
            problem = f"{name!r}: webdataset keeps the extension {extension!r} for itself"
            raise ShardError(self._shard, start, problem + " (it is reserved)")
        return self._extensions.setdefault(extension, len(self._extensions))


def _texts(texts: dict[str, None] | dict[str, int]) -> tuple[Column, Column]:
    """Texts as (offsets [n + 1] into the bytes, the bytes)."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.uint64)
    return narrow(ends), np.frombuffer(b"".join(encoded), np.uint8)
