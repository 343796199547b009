"""The index of one shard, either found in a sidecar or made by scanning the shard."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from data.errors import DataError
from data.index import shard_access
from data.index.column_container import Column
from data.index.shard import foreign_indexes, sample_token_counts, sidecar
from data.index.shard.sample_token_counts import Tokens
from data.index.shard.shard_index import ShardIndex
from data.index.shard_access import ShardScanInput
from data.index.tar.content_checksums import ContentSums
from data.index.tar.sample_grouping import SampleGrouping
from data.index.tar.tar_walk import Read, TarFeed, TarWalk, walk
from data.source.address import masked
from data.source.protocol import ObjectSource


def scan_shard(
    shard: str | Path,
    *,
    hash: bool = False,
    tokens: Tokens | None = None,
    source: ObjectSource | None = None,
) -> ShardIndex:
    """Index the uncompressed tar (ustar, pax or GNU) at a path or URL by its headers.

    `hash` reads the whole shard for its BLAKE3 and the checksum of each member, `tokens` says how
    to count each sample's tokens (see `data.index.shard.sample_token_counts`). Raises ShardError
    for a shard that is missing, no tar, truncated or broken, and for a key or an extension that
    occurs twice.
    """
    shard = str(shard)
    with shard_access.open_scan_input(shard, source) as file:
        return _scan(shard, file, hash, tokens)


def shard_index(
    shard: str | Path,
    *,
    hash: bool = False,
    tokens: Tokens | None = None,
    source: ObjectSource | None = None,
    index_folder: Path | None = None,
) -> ShardIndex:
    """Return the index of a shard: a stored one that fits and has what is asked for, else a new
    one, which is stored.

    Of stored indexes, the one of this version of the shard is tried first, then one beside it that
    came with a copy; that of a URL is then stored locally. With `hash`, a local file of another
    version is read again: a copy has the same bytes, but an overwritten file need not. The output
    of a `pipe:` command has no version: the command is run each time.
    """
    shard = str(shard)
    if shard_access.is_pipe(shard):
        pipes = shard_access.require_source(source, shard)
        return _index_of_command(shard, pipes, tokens, index_folder)
    with shard_access.open_scan_input(shard, source) as file:
        found = sidecar.find(shard, file.bytes, file.tag, index_folder)
        if found and has(found, hash, tokens):
            return found
        is_file = not shard_access.is_url(shard)
        fitting = sidecar.find_fitting(shard, file, None if is_file else source)
        if fitting and has(fitting, hash, tokens) and not (hash and is_file):
            if is_file:
                return fitting
            index = ShardIndex({**fitting.meta, "tag": file.tag}, fitting.columns)
        else:
            index = _scan(shard, file, hash, tokens)
    sidecar.keep(shard, index, index_folder)
    return index


def _index_of_command(
    shard: str, source: ObjectSource, tokens: Tokens | None, index_folder: Path | None
) -> ShardIndex:
    """Return the index of all that a command writes, with its hash, which identifies a second run
    of it."""
    if tokens is not None:
        raise DataError(
            f"{masked(shard)}: tokens are not counted in the output of a command; write it to a "
            "file"
        )
    made = StreamedShardIndexer(masked(shard))
    for piece in source.stream(shard, 0, None):
        made.feed(piece)
    index = made.finish()
    sidecar.keep(shard, index, index_folder)
    return index


def has(index: ShardIndex, hash: bool, way: Tokens | None) -> bool:
    """Return whether an index has the hashes and the tokens that are asked for."""
    has_tokens = way is None or index.tokens == sample_token_counts.name_of(way)
    return has_tokens and (not hash or (index.hash is not None and index.has_content_sums))


def scan_passing(shard: str, size: int, read: Read, way: Tokens | None) -> ShardIndex:
    """Index a shard of `size` bytes through `read`, such as a download that is under way anyway.

    Raises ShardError as `scan_shard` does, and what `read` raises.
    """
    return _scan(shard, shard_access.scan_input(size, read), False, way)


class StreamedShardIndexer:
    """Makes the index of a shard from its stream of bytes, such as a download or the shard being
    written."""

    def __init__(self, shard: str | Path) -> None:
        self._grouping, self._sums = SampleGrouping(shard), ContentSums()
        self._feed = TarFeed(TarWalk(shard, self._add))
        self._digest = blake3()

    def feed(self, chunk: bytes | memoryview) -> None:
        """Add the next bytes of the tar. Raises ShardError once they cannot be those of a tar."""
        self._digest.update(chunk)
        self._feed.feed(chunk)
        self._sums.feed(chunk)

    def _add(self, name: str, start: int, offset: int, size: int, header: int) -> None:
        if self._grouping.add(name, start, offset, size, header):
            self._sums.expect(offset, size)

    def finish(self, tag: str | None = None) -> ShardIndex:
        """Return the index, with the hashes of all bytes. Raises ShardError for a truncated tar."""
        self._feed.finish()
        facts = _facts(self._feed.bytes, tag, self._digest.hexdigest())
        return ShardIndex(facts, {**self._grouping.columns(), "content": self._sums.column()})


def with_tokens(index: ShardIndex, counts: npt.ArrayLike, way: str | None) -> ShardIndex:
    """Return the index with each sample's number of tokens, and how they were counted."""
    columns: dict[str, Column] = dict(index.columns)
    columns["tokens"] = np.asarray(counts, np.uint32)
    return ShardIndex({**index.meta, "tokens": way}, columns)


def _scan(shard: str, file: ShardScanInput, hash: bool, way: Tokens | None) -> ShardIndex:
    place = shard if shard_access.is_url(shard) else Path(shard)
    grouping = SampleGrouping(place)
    walk(file.scan, file.bytes, TarWalk(place, grouping.add))
    columns, whole = grouping.columns(), None
    if hash:
        members = zip(columns["offset"].tolist(), columns["size"].tolist(), strict=True)
        sums = ContentSums(members)
        whole = shard_access.hash_of(file.read, file.bytes, sums.feed)
        columns["content"] = sums.column()
    index = ShardIndex(_facts(file.bytes, file.tag, whole), columns)
    if isinstance(place, Path):
        foreign_indexes.compare(place, index)
    if way is None:
        return index
    return with_tokens(
        index,
        sample_token_counts.count(index, file.read, way, place),
        sample_token_counts.name_of(way),
    )


def _facts(size: int, tag: str | None, whole: str | None) -> dict[str, Any]:
    return {"bytes": size, "tag": tag, "hash": whole, "tokens": None}
