"""The manifest of shards whose members are grouped into samples by other names than those in the
tars."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from data.errors import DataError, IndexingError, ShardError
from data.index import column_container, shard_access
from data.index.index_pool import REMOTE_WORKERS
from data.index.manifest import Manifest
from data.index.manifest_rows import KIND, pack_rows, row_of
from data.index.shard.shard_index import ShardIndex
from data.index.tar.member_names import is_meta
from data.index.tar.sample_grouping import SampleGrouping
from data.index.tar.tar_walk import TarWalk, walk
from data.source.address import masked
from data.source.protocol import ObjectSource

Rename = Callable[[str], str]


class RenamedManifest(Manifest):
    """The manifest of some shards with the index of each in memory, as none is stored."""

    def __init__(self, shards: Sequence[str], indexes: Sequence[ShardIndex]) -> None:
        rows = [row_of(url, index) for url, index in zip(shards, indexes, strict=True)]
        place = "a manifest of renamed files"
        super().__init__(column_container.unpack(pack_rows(rows, "", None), KIND, place), "", place)
        self._indexes = list(indexes)

    def open_shard(
        self, i: int, *, source: ObjectSource | None = None, **unused: object
    ) -> ShardIndex:
        """Return the index of shard i, which must have the size that it had; the headers are
        compared as samples are read. Raises ShardError."""
        url, index = self.urls[i], self._indexes[i]
        if not shard_access.is_url(url):
            size, _ = shard_access.stat(url, source)
            if size != index.bytes:
                problem = f"has {size} bytes, but had {index.bytes} when it was opened"
                raise ShardError(Path(url), min(size, index.bytes), f"{problem}; open it again")
        return index


def renamed_manifest(
    shards: Sequence[str], rename: Rename, source: ObjectSource | None = None
) -> RenamedManifest:
    """Scan all shards in threads. Raises IndexingError with all that are broken; DataError for the
    output of commands, and if `rename` fails."""
    for shard in shards:
        if shard_access.is_pipe(shard):
            raise DataError(f"{masked(shard)}: rename_files reads tars twice; write it to a file")
    distinct = list(dict.fromkeys(shards))
    is_remote = any(map(shard_access.is_url, distinct))
    count = REMOTE_WORKERS if is_remote else len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(min(count, len(distinct))) as threads:
        found = list(threads.map(lambda shard: _scan(shard, rename, source), distinct))
    errors = [one for one in found if isinstance(one, DataError)]
    if errors:
        raise IndexingError(errors, len(distinct))
    indexes = {
        s: one for s, one in zip(distinct, found, strict=True) if isinstance(one, ShardIndex)
    }
    return RenamedManifest(shards, [indexes[shard] for shard in shards])


def _scan(shard: str, rename: Rename, source: ObjectSource | None) -> ShardIndex | DataError:
    place = shard if shard_access.is_url(shard) else Path(shard)
    grouping = SampleGrouping(place)

    def add(name: str, start: int, offset: int, size: int, header: int) -> None:
        if is_meta(name):
            return
        try:
            renamed = rename(name)
        except Exception as error:
            raise DataError(f"{place}: rename_files failed on {name!r}: {error!r}") from error
        if not isinstance(renamed, str):
            raise DataError(f"{place}: rename_files returned {renamed!r} for {name!r}, not a name")
        grouping.add(renamed, start, offset, size, header)

    try:
        with shard_access.open_scan_input(shard, source) as file:
            walk(file.scan, file.bytes, TarWalk(place, add))
            facts = {"bytes": file.bytes, "tag": file.tag, "hash": None, "tokens": None}
    except DataError as error:
        return error
    return ShardIndex(facts, grouping.columns())
