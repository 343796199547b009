"""The paths and URLs of a dataset's shards, stored compactly as one column."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

from data.index import shard_access
from data.index.column_container import Column

_MARKS = (b"://", b"pipe:")  # every URL has one of them
_PIECE = 1 << 20
_BISECTION = 32  # comparisons that one search by bisection may take


class ShardUrls(Sequence[str]):
    """The shards' absolute paths or URLs, decoded when they are used."""

    def __init__(self, at: Column, content: Column, base: str) -> None:
        self._at, self._content, self._base = at, content, base

    def __len__(self) -> int:
        return len(self._at) - 1

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"shard {i} is not in 0..{len(self) - 1}")
        start, end = int(self._at[i % len(self)]), int(self._at[i % len(self) + 1])
        return self._absolute(self._content[start:end].tobytes())

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    @cached_property
    def are_plain(self) -> bool:
        """Whether all of them are plain paths; checks all of them, a million in milliseconds."""
        if any(mark in self._base.encode("utf-8", "surrogateescape") for mark in _MARKS):
            return False
        step, overlap = _PIECE, max(map(len, _MARKS)) - 1
        pieces = (
            self._content[at : at + step + overlap] for at in range(0, len(self._content), step)
        )
        return not any(mark in piece.tobytes() for piece in pieces for mark in _MARKS)

    def without(self, paths: Sequence[str]) -> list[str]:
        """Return those of `paths` for which no shard has the same last component.

        Addresses are mostly in order, so a few are found by bisection; the others are searched for
        among all, a second or two for a million.
        """
        missing = list(paths)
        if len(missing) * _BISECTION < len(self):
            missing = [path for path in missing if not self._is_in_order(path)]
        if not missing:
            return []
        names = {_name(url) for url in self}
        return [path for path in missing if _name(path) not in names]

    def _is_in_order(self, url: str) -> bool:
        at = bisect_left(self, url)
        return at < len(self) and self[at] == url

    def _absolute(self, stored: bytes) -> str:
        url = stored.decode("utf-8", "surrogateescape")
        return url if shard_access.is_url(url) or url.startswith("/") else f"{self._base}{url}"


def _name(url: str) -> str:
    return url.rpartition("/")[2]


def relative(url: str, base: str) -> str:
    """Return the stored form of an absolute path or URL: the part after `base` if it is in
    there."""
    inside = url.startswith(base) and len(url) > len(base)
    rest = url[len(base) :] if inside else url
    return url if rest.startswith("/") or shard_access.is_url(rest) else rest
