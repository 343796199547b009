"""From the members of a tar to its samples, by webdataset's rule, as columns."""

from array import array
from pathlib import Path

import numpy as np

from data.errors import BrokenTarError
from data.index.column_container import Column, narrow
from data.index.tar.member_names import RESERVED_EXTENSIONS, split_name


class SampleGrouping:
    """Groups members into samples; its `add` is the sink of a `TarWalk`.

    Consecutive members of one key are a sample; names without an extension and metadata are
    skipped, as webdataset does. Raises BrokenTarError for a key that comes back after others, an
    extension that is twice in a sample, and a reserved one, at which webdataset would fail in the
    middle of an epoch.
    """

    def __init__(self, shard: Path | str) -> None:
        self._shard = shard
        self._key: str | None = None
        self._keys: dict[str, None] = {}
        self._present: set[int] = set()  # extensions of the present sample
        self._extensions: dict[str, int] = {}
        # Rows one after the other: (begin, first member), (offset, size, extension, header).
        self._samples, self._members = array("Q"), array("Q")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, name: str, start: int, offset: int, size: int, header: int) -> bool:
        """Add the next regular file of the tar; returns whether it is a member of a sample."""
        split = split_name(name)
        if split is None:
            return False
        key, extension = split
        number = self._extensions.get(extension)
        if number is None:
            number = self._new_extension(name, extension, start)
        if key != self._key:
            self._new_sample(name, key, start)
        elif number in self._present:
            problem = f"{name!r}: extension {extension!r} occurs twice in its sample"
            raise BrokenTarError(self._shard, start, problem)
        self._present.add(number)
        self._members.extend((offset, size, number, header))
        return True

    def columns(self) -> dict[str, Column]:
        """Return the columns of a `ShardIndex`."""
        key_at, keys = _texts(self._keys)
        extension_at, extensions = _texts(self._extensions)
        begin, first = np.array(self._samples, np.uint64).reshape(-1, 2).T
        offset, size, extension, header = np.array(self._members, np.uint64).reshape(-1, 4).T
        return {
            "begin": narrow(begin),
            "first": narrow(np.append(first, np.uint64(len(offset)))),
            "offset": narrow(offset),
            "size": narrow(size),
            "extension": narrow(extension),
            "header": narrow(header),
            "key_at": key_at,
            "keys": keys,
            "extension_at": extension_at,
            "extensions": extensions,
        }

    def _new_sample(self, name: str, key: str, start: int) -> None:
        if key in self._keys:
            problem = f"{name!r} continues key {key!r} after other samples; sort the tar"
            raise BrokenTarError(self._shard, start, problem)
        self._keys[key] = None
        self._key = key
        self._present = set()
        self._samples.extend((start, len(self._members) // 4))

    def _new_extension(self, name: str, extension: str, start: int) -> int:
        if extension in RESERVED_EXTENSIONS:
            problem = f"{name!r}: webdataset reserves the extension {extension!r}"
            raise BrokenTarError(self._shard, start, problem + " (it is reserved)")
        return self._extensions.setdefault(extension, len(self._extensions))


def _texts(texts: dict[str, None] | dict[str, int]) -> tuple[Column, Column]:
    """Return texts as (offsets of shape (n + 1,) into the bytes, the bytes)."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.uint64)
    return narrow(ends), np.frombuffer(b"".join(encoded), np.uint8)
