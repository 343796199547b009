"""The dataset manifest: one file with the shards in order, what is known of each, and the
fingerprint."""

import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
from blake3 import blake3

from data.durable_files import write_atomically
from data.errors import FetchError, IndexFileError, NoIndexError, ShardError
from data.index import column_container, shard_access
from data.index.column_container import IndexColumns
from data.index.manifest_rows import ShardRow, pack_rows
from data.index.manifest_summary import HASH, KIND, KINDS, column_lengths
from data.index.manifest_summary import NAME as NAME
from data.index.shard.known_shard_index import KnownShard, find
from data.index.shard.shard_index import IntArray, ShardIndex
from data.index.shard.shard_scan import shard_index
from data.index.shard_patterns import tars_of
from data.index.shard_urls import ShardUrls
from data.index.tar.tar_walk import Read
from data.source.address import masked, split_query
from data.source.protocol import NOT_FOUND, ObjectSource, short_tag


class Manifest:
    """The shards 0 .. len - 1 of a dataset, in order, as columns of shape (len,).

    `samples` and `bytes` are int64, as is `n_tokens`, which is None if not all shards have it.
    Relative URLs are relative to `base`, the folder or URL prefix of the manifest, so both can be
    moved together.
    """

    def __init__(self, content: IndexColumns, base: str, place: Path | str) -> None:
        _check(content, place)
        content.release()
        self._content = content
        self.base = base
        self.place = place
        self.columns = content.columns
        self.tokens: str | None = content.meta.get("tokens")
        self.samples: IntArray = content.columns["samples"]
        self.bytes: IntArray = content.columns["bytes"]
        self.n_tokens: IntArray | None = content.columns.get("tokens")
        self.urls = ShardUrls(content.columns["url_at"], content.columns["urls"], base)

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def total_samples(self) -> int:
        return int(self.samples.sum())

    @cached_property
    def fingerprint(self) -> str:
        """The BLAKE3 (hex) of each shard's number of samples and digest, in order: it identifies
        the content of the dataset.

        It does not depend on where the shards are, on their names, or on how the tars were written.
        """
        return self.fingerprint_of(len(self))

    def fingerprint_of(self, shards: int) -> str:
        """Return the fingerprint of a dataset of the first `shards` shards alone."""
        digest = blake3(b"hpckit-dataset-1")
        digest.update(np.uint64(shards).tobytes())
        digest.update(np.ascontiguousarray(self.samples[:shards]).view(np.uint8).data)
        digest.update(np.ascontiguousarray(self.columns["digests"][: shards * HASH]).data)
        self._content.release()
        return digest.hexdigest()

    def release(self) -> None:
        """Release mapped pages after reading the rows of all shards; see `IndexColumns.release`."""
        self._content.release()

    def hash(self, i: int) -> str | None:
        """Return the BLAKE3 (hex) of all bytes of shard i, None if not known."""
        found = self.columns["hashes"][i * HASH : (i + 1) * HASH].tobytes()
        return found.hex() if any(found) else None

    def digest(self, i: int) -> str:
        """Return the digest of shard i's samples."""
        return self.columns["digests"][i * HASH : (i + 1) * HASH].tobytes().hex()

    def file_bytes(self, i: int) -> int:
        """Return the size of the file that shard i is, or is a part of."""
        return int(self.bytes[i])

    def is_version(self, i: int, size: int, tag: str | None) -> bool:
        """Return whether shard i had this size and version when it was indexed."""
        return int(self.bytes[i]) == size and int(self.columns["tags"][i]) == short_tag(tag)

    def row(self, i: int) -> ShardRow:
        """Return the row of shard i, without its tag."""
        tokens = None if self.n_tokens is None else int(self.n_tokens[i])
        return ShardRow(
            self.urls[i],
            int(self.samples[i]),
            int(self.bytes[i]),
            None,
            self.hash(i),
            self.digest(i),
            tokens,
        )

    def open_shard(
        self,
        i: int,
        *,
        source: ObjectSource | None = None,
        index_folder: Path | None = None,
        passing: Read | None = None,
        whole: bool = False,
        content: bool = False,
    ) -> ShardIndex:
        """Return the index of shard i, which must be the one that was indexed.

        For a URL this is the locally stored index, else the one beside the shard, which is then
        stored; the shard itself is not requested, as its reader compares every header. If there is
        none, the index is made from what `passing` reads, such as a download that is under way
        anyway; with `whole` this is done first, so that a shard in the cache needs no source. With
        `content`, an index without the checksums of members is skipped and one that has them is
        used.

        Raises ShardError if the shard is gone, broken, or another than the manifest says.
        """
        self._content.release()  # reading one row maps up to 2 MiB of each column
        url = self.urls[i]
        wants = self.tokens if self.n_tokens is not None else None
        if shard_access.is_url(url):
            known = self._known(i, url, wants, content)
            found = find(known, source=source, folder=index_folder, passing=passing, whole=whole)
            if found is not None:
                return found
        place = url if shard_access.is_url(url) else Path(url)
        todo = "; index the dataset again: `hpckit data index`"
        size, _ = shard_access.stat(url, source)
        if size != int(self.bytes[i]):
            problem = (
                f"has {size} bytes, but had {int(self.bytes[i])} when {self.place} was made{todo}"
            )
            raise ShardError(place, min(size, int(self.bytes[i])), problem)
        index = shard_index(
            url, tokens=_repeatable_tokens(wants), source=source, index_folder=index_folder
        )
        if (len(index), index.digest) != (int(self.samples[i]), self.digest(i)):
            problem = f"has other samples than when {self.place} was made{todo}"
            raise ShardError(place, 0, problem)
        return index

    def _known(self, i: int, url: str, tokens: str | None, content: bool) -> KnownShard:
        tag = int(self.columns["tags"][i])
        samples, size = int(self.samples[i]), int(self.bytes[i])
        return KnownShard(
            url, samples, size, tag, self.digest(i), tokens, _repeatable_tokens(tokens), content
        )


def open_manifest(place: str | Path, *, source: ObjectSource | None = None) -> Manifest:
    """Open the manifest at a path, in a folder, or at a URL; one that ends in "/" is a folder.

    Raises IndexFileError if it is not a manifest or damaged, and what the source raises.
    """
    text = str(place)
    if shard_access.is_url(text):
        name, query = split_query(text)
        text = f"{name}{NAME}{query}" if name.endswith("/") else text
        size, tag = _stat(text, source)
        assert source is not None
        content = column_container.unpack(source.read(text, 0, size, tag), KIND, text)
        folder = split_query(text)[0].rpartition("/")[0]
        return Manifest(content, f"{folder}/", masked(text))
    path = Path(place).absolute()
    path = path / NAME if path.is_dir() else path
    try:
        content = column_container.load_mapped(path, KIND)
    except FileNotFoundError as error:
        raise NoIndexError(path, _how_to_get(path)) from error
    except OSError as error:
        raise IndexFileError(path, f"cannot be read: {error.strerror}") from error
    return Manifest(content, f"{path.parent}/", path)


def _how_to_get(path: Path) -> str:
    """Return what is missing at the path of a manifest that does not exist, and what to do."""
    if path.name == NAME and path.parent.is_dir():
        if tars_of(path.parent):
            return f"does not exist; create it with `hpckit data index {path.parent}`"
        return (
            f"does not exist, and the folder has no tar; `hpckit data pack {path.parent} SHARDS` "
            "makes shards of its files"
        )
    return (
        "does not exist; give a folder of tars, a pattern such as 'train-{000..127}.tar', or an "
        "index, which `hpckit data index SHARDS --out INDEX` makes"
    )


def _stat(url: str, source: ObjectSource | None) -> tuple[int, str | None]:
    """Return the size and tag of a manifest at a URL. Raises FetchError."""
    try:
        return shard_access.stat(url, source)
    except FetchError as error:
        if NOT_FOUND not in error.problem:
            raise
        hint = (
            f"the shards of a folder at a URL are found by its {NAME}, which `hpckit data index "
            "'SHARDS' --out FOLDER` makes; or give their names as a range, or a list"
        )
        raise FetchError(masked(url), f"{error.problem}; {hint}", error.attempts) from error


def save_manifest(rows: Iterable[ShardRow], out: Path, tokens: str | None = None) -> Manifest:
    """Write a manifest, durably and atomically, and open it. Raises OSError."""
    out = out.absolute()
    write_atomically(out, pack_rows(list(rows), f"{out.parent}/", tokens))
    return open_manifest(out)


def make_manifest(rows: Iterable[ShardRow], tokens: str | None = None) -> Manifest:
    """Return a manifest in memory, which is not stored."""
    place = "a manifest in memory"
    return Manifest(
        column_container.unpack(pack_rows(list(rows), "", tokens), KIND, place), "", place
    )


def _check(content: IndexColumns, place: Path | str) -> None:
    """Raise IndexFileError for columns that make no manifest."""
    found = content.columns
    n = len(found.get("samples", ()))
    for name, length in column_lengths(n, has_tokens="tokens" in found).items():
        if name not in found or length not in (None, len(found[name])):
            raise IndexFileError(place, f"is not a manifest: column {name!r} is missing or short")
    for name, kind in KINDS.items():
        if name in found and not found[name].dtype.str[1:].startswith(kind):
            raise IndexFileError(place, f"is not a manifest: column {name!r} has another type")
    at = found["url_at"]
    rises = (
        int(at[0]) == 0 and int(at[-1]) == len(found["urls"]) and bool(np.all(at[1:] >= at[:-1]))
    )
    numbers = [found[name] for name in ("samples", "bytes", "tokens") if name in found and n]
    are_counts = all(int(c.min()) >= 0 and float(c.sum(dtype=float)) < 2**63 for c in numbers)
    if not rises or not are_counts:
        raise IndexFileError(place, "is not a manifest: its numbers are impossible")
    if not isinstance(content.meta.get("tokens"), str | None):
        raise IndexFileError(place, "is not a manifest: its way of counting tokens is not text")


def _repeatable_tokens(tokens: str | None) -> str | None:
    """Return the way of counting tokens if its text is enough to repeat it, else None."""
    return tokens if tokens and (":" in tokens or tokens == "npy") else None


def is_manifest(place: str | Path) -> bool:
    """Return whether a path is a manifest, or a folder that has one."""
    path = Path(place)
    return (path / NAME).is_file() or (path.is_file() and has_magic(path))


def has_magic(path: Path) -> bool:
    """Return whether a file begins as an index does. Raises OSError."""
    with path.open("rb") as file:
        return os.pread(file.fileno(), len(column_container.MAGIC), 0) == column_container.MAGIC
