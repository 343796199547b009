"""What a command says about a folder of tars that has a manifest, read without numpy.

`data.read.dataset.open_dataset` opens every dataset. It imports numpy, which takes as long as the
rest of a check of a dataset. Here only the ordinary folder is read, and only if nothing is wrong
with it: everything else is left to `open_dataset`, which says what it is.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeAlias

from data.errors import DataError, is_url
from data.index.container_header import ITEM_BYTES, StoredColumn, check_digest, parse_header
from data.index.shard_patterns import entries_of

NAME = "dataset.index"
"""The name of a manifest in a folder of shards."""
KIND = "dataset"
"""What the container of a manifest is called in its header."""
HASH = 32
"""The bytes of a hash or a digest of a shard."""
KINDS = {"samples": "i", "bytes": "i", "tokens": "i", "tags": "u"}
KINDS |= dict.fromkeys(("hashes", "digests", "urls"), "u1")
"""How the types of columns begin, which have no other."""
_MOST_BYTES = 4 << 20
"""Of a larger manifest, loops of Python would take longer than importing numpy."""
_CODES: Mapping[str, Literal["B", "H", "I", "Q", "q"]]
_CODES = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i8": "q"}
"""The types of columns as a view of memory calls them."""
_MOST = 1 << 62
"""Sums of numbers below this one are exact enough for numpy, which adds them as floats."""
_BESIDE = (".tar", ".tar.index", f"/{NAME}", "/pack.json")
"""How the paths of what is in an ordinary folder end."""

_Columns: TypeAlias = Mapping[str, "memoryview[int]"]


def column_lengths(shards: int, *, has_tokens: bool) -> dict[str, int | None]:
    """Return the length that each column of a manifest must have; None: any."""
    lengths: dict[str, int | None] = {"samples": shards, "urls": None}
    lengths |= {"bytes": shards, "tags": shards, "url_at": shards + 1}
    lengths |= {"hashes": shards * HASH, "digests": shards * HASH}
    return lengths | ({"tokens": shards} if has_tokens else {})


@dataclass(frozen=True)
class ManifestSummary:
    """The shards of a manifest: their paths and sizes."""

    urls: Sequence[str]
    """Absolute paths."""
    sizes: Sequence[int]
    """Bytes of their files."""

    def __len__(self) -> int:
        return len(self.urls)

    def file_bytes(self, i: int) -> int:
        """Return the size that the file of shard i had when it was indexed."""
        return self.sizes[i]


@dataclass(frozen=True)
class DatasetSummary:
    """A dataset as `Dataset`, without what it takes to read samples."""

    manifest: ManifestSummary
    samples: int

    def __len__(self) -> int:
        return self.samples


def summarise_folder(folder: Path) -> DatasetSummary | None:
    """Return what the manifest of a folder of tars tells, which `open_dataset` would open without
    an error or a warning. None: `open_dataset` has to look, as the folder has no manifest, or
    anything is unusual."""
    place = folder.expanduser().absolute() / NAME
    try:
        if place.stat().st_size > _MOST_BYTES:
            return None
        beside = [str(path) for path in entries_of(place.parent)]
        found = summarise(place.read_bytes(), place)
    except (OSError, DataError):
        return None
    if found is None or not all(path.endswith(_BESIDE) for path in beside):
        return None
    tars = [path for path in beside if path.endswith(".tar")]
    return found if sorted(found.manifest.urls) == sorted(tars) else None


def summarise(content: bytes, place: Path) -> DatasetSummary | None:
    """Return what a manifest with this content and of this path tells; None if it has no shards, or
    numbers that are impossible.

    Raises IndexFileError if the content is no container, or damaged.
    """
    if sys.byteorder != "little":
        return None
    header = parse_header(content, KIND, place)
    check_digest(content, place)
    if not _are_there(header.columns) or not isinstance(header.meta.get("tokens"), str | None):
        return None
    columns = {one.name: _view(content, one) for one in header.columns if one.length}
    if not _are_possible(columns):
        return None
    urls = list(_urls(columns, f"{place.parent}/"))
    manifest = ManifestSummary(urls, columns["bytes"].tolist())
    return DatasetSummary(manifest, sum(columns["samples"]))


def _are_there(columns: Sequence[StoredColumn]) -> bool:
    """Return whether a manifest has these columns, and at least one shard."""
    found = {one.name: one for one in columns}
    shards = found["samples"].length if "samples" in found else 0
    lengths = column_lengths(shards, has_tokens="tokens" in found)
    return (
        shards > 0
        and lengths.keys() <= found.keys()
        and all(length in (None, found[name].length) for name, length in lengths.items())
        and all(found[n].dtype.startswith(kind) for n, kind in KINDS.items() if n in found)
    )


def _view(content: bytes, column: StoredColumn) -> "memoryview[int]":
    end = column.start + column.length * ITEM_BYTES[column.dtype]
    return memoryview(content)[column.start : end].cast(_CODES[column.dtype])


def _are_possible(columns: _Columns) -> bool:
    """Return whether numbers of samples, bytes and tokens are counts, and the paths of shards are
    parts of their column."""
    at = columns["url_at"]
    counts = [columns[name] for name in ("samples", "bytes", "tokens") if name in columns]
    return (
        at[0] == 0
        and at[-1] == len(columns.get("urls", ()))
        and all(a <= b for a, b in pairwise(at))
        and all(min(one) >= 0 and sum(one) < _MOST for one in counts)
    )


def _urls(columns: _Columns, base: str) -> Iterator[str]:
    whole = bytes(columns.get("urls", b""))
    for a, b in pairwise(columns["url_at"]):
        url = whole[a:b].decode("utf-8", "surrogateescape")
        yield url if url.startswith("/") or is_url(url) else f"{base}{url}"
