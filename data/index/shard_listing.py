"""From the shards as a user gives them for a dataset to their paths and URLs."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

from data.errors import DataError, shown
from data.index import shard_access
from data.index.manifest import is_manifest
from data.index.shard import energon_index
from data.index.shard_patterns import expand_ranges, find_shards, tars_of
from data.source.address import Address, masked, split_query

Shards: TypeAlias = str | Path | Sequence[str | Path]
FileT = TypeVar("FileT")

_FILE = re.compile(r"(file|local)://", re.IGNORECASE)
_GLOB = re.compile(r"\*|\[[^]]*-[^]]*\]")
"""What no name of an object has, as far as anybody names them: `*`, and ranges such as `[0-9]`."""


def checked_shards(shards: object) -> Shards:
    """Return shards as they were given: a path or URL, or a list of them, of whatever iterable.
    Raises DataError for anything else, and for a set, as its order differs between ranks."""
    if isinstance(shards, str | Path):
        return _without_scheme(shards)
    if isinstance(shards, set | frozenset):
        raise DataError("shards are given as a set, whose order differs between ranks; sort them")
    if not isinstance(shards, Iterable) or isinstance(shards, bytes | Mapping):
        raise _wrong_type(shards)
    found = list(shards)
    for one in found:
        if not isinstance(one, str | Path):
            raise _wrong_type(one)
    return [_without_scheme(one) for one in found]


def _without_scheme(item: str | Path) -> str | Path:
    """Return the path of a `file://` URL, which may be a pattern; other items as they are. Raises
    DataError."""
    if not isinstance(item, str) or not _FILE.match(item):
        return item
    return str(Address.parse(item).local)


def list_shards(shards: Shards, *, repeated: bool = False) -> list[str]:
    """Return absolute paths and URLs, in the order of the dataset.

    An item is a tar, a folder (its `*.tar`, sorted; or those that Energon lists, if it prepared the
    folder), a glob, or a pattern with `{000000..000012}` ranges, which may be a URL or a command,
    as in `pipe:zcat {00..07}.tar.gz`. Raises DataError if an item matches nothing, or, unless
    `repeated`, if a shard is given twice.
    """
    items = [shards] if isinstance(shards, str | Path) else list(shards)
    if not items:
        raise DataError("no shards given: expected a folder, a glob, a range or a list of tars")
    found = [shard for item in items for shard in _expand(item)]
    if repeated:
        return found
    seen: set[str] = set()
    for shard in found:
        name = _identity(shard)
        if name in seen:
            raise DataError(
                f"shard {masked(shard)} is given twice; its samples would be used twice"
            )
        seen.add(name)
    return found


def _identity(shard: str) -> str:
    """Return what is the same for all names of a shard: links, and URLs that sign the request."""
    if shard_access.is_url(shard):  # of a million, few have a query
        return Address.parse(shard).identity if split_query(shard)[1] else shard
    return str(Path(shard).resolve())


def items_of(shards: Shards) -> list[str]:
    """Return the items of `shards` as text, paths without the scheme `file://`."""
    items = [shards] if isinstance(shards, str | Path) else shards
    return [str(_without_scheme(item)) for item in items]


def files_of_items(
    items: Sequence[str], files_of: Callable[[str], list[FileT] | None], kind: str
) -> list[FileT] | None:
    """Return the files of all items; None if those of no item are of this kind.

    Args:
        files_of: returns the files of an item; None if they are of another kind.
        kind: what one is called in the error, such as "a table".

    Raises DataError if those of only some items are of this kind.
    """
    found = [files_of(item) for item in items]
    if all(files is None for files in found):
        return None
    for item, files in zip(items, found, strict=True):
        if files is None:
            raise DataError(
                f"{shown(item)} is not {kind}, and other shards are; open them separately"
            )
    return [file for files in found for file in files or ()]


def is_folder_of_tars(folder: Path) -> bool:
    """Return whether what a folder has is known as tars: by a manifest, by Energon, or by their
    names. Raises DataError."""
    if is_manifest(folder) or tars_of(folder):
        return True
    return energon_index.shard_counts(folder) is not None


def _wrong_type(given: object) -> DataError:
    return DataError(
        "shards are given as a path, a URL or a list of them, each as text or a Path, not as "
        f"{type(given).__name__}"
    )


def _expand(item: str | Path) -> list[str]:
    text = str(_without_scheme(item))
    if not shard_access.is_url(text):
        listed = energon_index.list_shards(Path(text).expanduser())
        return [str(path) for path in listed or find_shards(text)]
    if shard_access.is_plain_url(text) and (text.endswith("/") or _GLOB.search(_path(text))):
        raise DataError(
            f"shards at {shown(text)}: a store cannot be listed; give a range such as"
            " {000000..000099}, or a list of URLs"
        )
    return expand_ranges(text, choices=not shard_access.is_pipe(text))


def _path(url: str) -> str:
    """Return the part of a URL after the host, whose address may have brackets, without the
    query."""
    return split_query(url)[0].partition("://")[2].partition("/")[2]
