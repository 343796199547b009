"""The index of one shard: each sample's key and the place of its members, as columns."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from data.errors import IndexFileError
from data.index.column_container import Column
from data.index.tar.tar_header import BLOCK, MOST_SIZE

IntArray: TypeAlias = npt.NDArray[np.int64]

KIND = "shard"


class TarMember(NamedTuple):
    """One member of a sample: its bytes are [offset, offset + size) of the shard.

    `header` is the CRC-32 of the 512 bytes before it, by which a read can detect a stale index.
    """

    extension: str
    offset: int
    size: int
    header: int


class ShardIndex:
    """The samples 0 .. len - 1 of a shard, in the order of the tar.

    `bytes` is the shard's size, `tag` identifies its version (an etag, or its modification time),
    `hash` is the BLAKE3 (hex) of all its bytes; the last two are None where not known. `n_tokens`,
    of shape (len,), is how many tokens each sample has, counted as `tokens` says.

    Columns, of n samples, m members and e extensions: begin[n] (offset of the sample's first
    header), first[n + 1] (its members are first[i] .. first[i + 1]), offset, size, extension and
    header[m], key_at[n + 1] into keys, extension_at[e + 1] into extensions, maybe tokens[n], and
    maybe content[m], see `data.index.tar.content_checksums`, where all bytes were read.
    """

    def __init__(self, meta: Mapping[str, Any], columns: Mapping[str, Column]) -> None:
        self.meta = meta
        self.columns = columns
        self.bytes: int = meta["bytes"]
        self.tag: str | None = meta.get("tag")
        self.hash: str | None = meta.get("hash")
        self.tokens: str | None = meta.get("tokens")
        self.n_tokens: npt.NDArray[np.uint32] | None = columns.get("tokens")
        self._first, self._key_at = columns["first"], columns["key_at"]

    @property
    def has_content_sums(self) -> bool:
        """Whether the index has checksums of contents, so that a read can compare more than
        headers."""
        return "content" in self.columns

    def __len__(self) -> int:
        return len(self._first) - 1

    def key(self, i: int) -> str:
        """Return the key of sample i. Raises IndexError."""
        i = self._at(i)
        start, end = self._key_at[i : i + 2].tolist()
        return _text(self.columns["keys"][start:end])

    def number_of(self, key: bytes) -> int | None:
        """Return the number of the sample of a key, None if there is none."""
        keys, at = self.columns["keys"].tobytes(), self._key_at
        found = keys.find(key)
        while found >= 0:
            sample = int(np.searchsorted(at, found, side="right")) - 1
            if at[sample : sample + 2].tolist() == [found, found + len(key)]:
                return sample
            found = keys.find(key, found + 1)
        return None

    def members(self, i: int) -> Sequence[TarMember]:
        """Return the members of sample i. Raises IndexError."""
        i = self._at(i)
        start, end = self._first[i : i + 2].tolist()
        columns, names = self.columns, self.extensions
        return [
            TarMember(names[extension], offset, size, header)
            for extension, offset, size, header in zip(
                columns["extension"][start:end].tolist(),
                columns["offset"][start:end].tolist(),
                columns["size"][start:end].tolist(),
                columns["header"][start:end].tolist(),
                strict=True,
            )
        ]

    def span(self, i: int) -> tuple[int, int]:
        """Return the range of sample i: from its first header to its last member's last byte."""
        i = self._at(i)
        last = int(self._first[i + 1]) - 1
        end = int(self.columns["offset"][last]) + int(self.columns["size"][last])
        return int(self.columns["begin"][i]), end

    def spans(self, i: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """Return `span` of many samples: (begins, ends), in the shape of `i`. Raises IndexError."""
        samples = np.asarray(i, dtype=np.int64)
        if samples.size and not 0 <= int(samples.min()) <= int(samples.max()) < len(self):
            raise IndexError(f"sample numbers must be in 0..{len(self) - 1}")
        last = self._first[samples + 1].astype(np.int64) - 1
        ends = self.columns["offset"][last].astype(np.int64)
        ends += self.columns["size"][last].astype(np.int64)
        return self.columns["begin"][samples].astype(np.int64), ends

    @cached_property
    def extensions(self) -> tuple[str, ...]:
        """The extensions that occur, in the order of their first use."""
        at = self.columns["extension_at"].tolist()
        return tuple(_text(self.columns["extensions"][start:end]) for start, end in pairwise(at))

    @cached_property
    def digest(self) -> str:
        """The BLAKE3 (hex) of the keys, extensions and sizes, in order.

        It identifies the samples: it changes with any of them or their order, but not with the
        shard's name, its place, or how the tar was written (so offsets are left out).
        """
        digest = blake3(b"hpckit-shard-1")
        for name in ("first", "key_at", "extension_at", "extension", "size"):
            column = self.columns[name]
            digest.update(np.uint64(len(column)).tobytes())
            digest.update(column.astype("<u8").tobytes())
        digest.update(self.columns["keys"].tobytes())
        digest.update(self.columns["extensions"].tobytes())
        return digest.hexdigest()

    def _at(self, i: int) -> int:
        if not 0 <= i < len(self):
            raise IndexError(f"sample {i} is not in 0..{len(self) - 1}")
        return i


def checked(
    meta: Mapping[str, Any], columns: Mapping[str, Column], place: Path | str
) -> ShardIndex:
    """Return a ShardIndex of a file's content, if that is valid. Raises IndexFileError."""
    wrong = _wrong_meta(meta) or _wrong_columns(meta, columns)
    if wrong:
        raise IndexFileError(place, f"is not an index of a shard: {wrong}; rebuild it")
    return ShardIndex(meta, columns)


def _wrong_meta(meta: Mapping[str, Any]) -> str | None:
    if type(meta.get("bytes")) is not int or not 0 <= meta["bytes"] <= MOST_SIZE:
        return "the shard's size is not a number"
    for name in ("tag", "hash", "tokens"):
        if not isinstance(meta.get(name), str | None):
            return f"its {name} is not text"
    return None


def _wrong_columns(meta: Mapping[str, Any], columns: Mapping[str, Column]) -> str | None:
    missing = {"begin", "first", "key_at", "keys", "extension_at", "extensions"} - columns.keys()
    missing |= {"offset", "size", "extension", "header"} - columns.keys()
    if missing:
        return f"no column {min(missing)!r}"
    n, m = len(columns["begin"]), len(columns["offset"])
    lengths = {"first": n + 1, "key_at": n + 1, "size": m, "extension": m, "header": m}
    lengths |= {name: rows for name, rows in (("tokens", n), ("content", m)) if name in columns}
    for name, length in lengths.items():
        if len(columns[name]) != length:
            return f"column {name!r} has {len(columns[name])} rows, expected {length}"
    for name, end, least in (
        ("first", m, 1),
        ("key_at", len(columns["keys"]), 0),
        ("extension_at", len(columns["extensions"]), 0),
    ):
        if not _rises(columns[name], end, least):
            return f"column {name!r} does not increase from 0 to {end}"
    return _wrong_places(meta["bytes"], columns)


def _rises(column: Column, end: int, least: int) -> bool:
    """Return whether the values go from 0 to `end` in steps of at least `least`: 0 or 1."""
    if not len(column) or int(column[0]) != 0 or int(column[-1]) != end:
        return False
    return bool(np.all(column[1:] > column[:-1] if least else column[1:] >= column[:-1]))


def _wrong_places(size: int, columns: Mapping[str, Column]) -> str | None:
    offset, length, begin = columns["offset"], columns["size"], columns["begin"]
    if not len(offset):
        return None
    if min(int(columns[name].min()) for name in ("size", "begin", "extension")) < 0:
        return "a number below 0"
    if int(columns["extension"].max()) >= len(columns["extension_at"]) - 1:
        return "a member whose extension is not listed"
    # None is beyond the file, so the sums below cannot overflow.
    if max(int(offset.max()), int(length.max())) > size or int(offset.min()) < BLOCK:
        return "a member outside the shard"
    ends = offset.astype(np.int64) + length.astype(np.int64)
    if bool(np.any(ends[:-1] > offset[1:].astype(np.int64) - BLOCK)) or int(ends[-1]) > size:
        return "members that overlap"
    first = columns["first"][:-1]
    if bool(np.any(begin.astype(np.int64) > offset[first].astype(np.int64) - BLOCK)):
        return "a sample that begins after its members"
    return None


def _text(column: Column) -> str:
    return column.tobytes().decode("utf-8", "surrogateescape")
