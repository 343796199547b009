"""Describes what the code snapshot leaves out of the project, in one line."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from hpckit.text import quantities

SHOWN = 5
"""Number of folders and files that a line names; others are counted."""
_FEW = 3  # more of one kind in one folder are named by that folder
_MOST_SIZED = 5_000  # files whose size is read for one line


class LeftOut(NamedTuple):
    """A file or folder that is not copied."""

    name: str
    """Relative to the project; that of a folder ends with a slash."""
    kind: str
    """What it is, in words for people."""
    is_shown: bool = True
    """Whether the user is informed. False: the user's own list names it."""


class LeftOutGroup(NamedTuple):
    """What is named together: many of one kind in a folder are named by that folder."""

    name: str
    kind: str
    members: tuple[str, ...]

    def __str__(self) -> str:
        count = len(self.members)
        return self.kind if count == 1 else f"{count:,} x {self.kind}"


def describe_left_out(root: Path, left_out: Iterable[LeftOut]) -> str:
    """Returns a line that names what was left out and how large it is; empty if there is
    nothing."""
    remaining = _MOST_SIZED
    parts: list[str] = []
    more = 0
    for group in sorted(group_left_out(one for one in left_out if one.is_shown)):
        if len(parts) == SHOWN:
            more += 1
            continue
        size, seen = _size(root, group.members, remaining)
        if not seen:
            continue  # an empty folder
        is_whole = seen < remaining
        remaining = max(1, remaining - seen)
        parts.append(
            f"{group.name} ({group}, {'' if is_whole else 'over '}{quantities.size(size)})"
        )
    return ", ".join(parts) + (f" and {more:,} more" if more else "")


def largest_folders(sizes: Iterable[tuple[str, int]]) -> str:
    """Returns the folders right below the project, or one level below, that hold the most of these
    files, in words. Pure.

    Args:
        sizes: names of files, relative to the project, and their sizes in bytes.
    """
    files, content = Counter[str](), Counter[str]()
    for name, size in sizes:
        folder = "/".join(name.split("/")[:-1][:2]) or "."
        files[folder] += 1
        content[folder] += size
    ranked = sorted(files, key=lambda one: (-files[one], -content[one], one))
    by_size = max(content, key=lambda one: content[one], default=None)
    shown = [*ranked[:2], *([by_size] if by_size not in ranked[:2] else []), *ranked[2:]]
    words = (
        f"{one}{'' if one == '.' else '/'} ({files[one]:,} files, {quantities.size(content[one])})"
        for one in dict.fromkeys(filter(None, shown[:3]))
    )
    return ", ".join(words)


def group_left_out(left_out: Iterable[LeftOut]) -> Iterator[LeftOutGroup]:
    """Yields the groups of what is left out. Pure."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one in left_out:
        found[_parent(one.name), one.kind].append(one.name)
    for (parent, kind), names in found.items():
        if len(names) > _FEW:
            yield LeftOutGroup(parent or "./", kind, tuple(names))
        else:
            yield from (LeftOutGroup(name, kind, (name,)) for name in names)


def _parent(name: str) -> str:
    head, slash, _ = name.removesuffix("/").rpartition("/")
    return head + slash


def _size(root: Path, names: Collection[str], most: int) -> tuple[int, int]:
    """Returns the bytes in files and folders, as far as `most` files go, and how many were
    seen."""
    size = seen = 0
    for found in _files(root, names):
        if seen == most:
            break
        seen += 1
        size += found
    return size, seen


def _files(root: Path, names: Collection[str]) -> Iterator[int]:
    """Yields the sizes of the files. One that cannot be read is skipped: this is for a message."""
    folders = []
    for name in names:
        with suppress(OSError):
            if name.endswith("/"):
                folders.append(root / name)
            else:
                yield (root / name).lstat().st_size
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False).st_size
