"""The manifest of tables on disk, whose shards are successive groups of rows and not stored."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from data.index import column_container
from data.index.column_container import narrow
from data.index.manifest import Manifest
from data.index.manifest_rows import KIND, ShardRow, pack_rows
from data.index.record_files.record_manifest import number_keys
from data.index.shard.shard_index import ShardIndex
from data.index.table_files.table_file import TableFile
from data.index.tar.tar_walk import Read
from data.source.protocol import ObjectSource

SHARD_ROWS = 8192
SHARD_BYTES = 16 << 20
"""What a shard of several record batches has at most. The order of samples depends on both."""


class TableShard(NamedTuple):
    """The groups first .. end - 1 of a file; `number` is that of the first row in the dataset."""

    table: TableFile
    first: int
    end: int
    number: int

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.table.groups[self.first : self.end])


class TableManifest(Manifest):
    """The manifest of some tables, in order. The key of a row is its number in the dataset, in 12
    digits."""

    def __init__(self, tables: Sequence[TableFile], place: str) -> None:
        self._shards: list[TableShard] = []
        number = 0
        for table in tables:
            for first, end in _ranges(table):
                self._shards.append(TableShard(table, first, end, number))
                number += self._shards[-1].rows
        content = pack_rows([_row(shard) for shard in self._shards], "", None)
        super().__init__(column_container.unpack(content, KIND, place), "", place)

    def shard(self, i: int) -> TableShard:
        """Return the groups that shard i is made of."""
        return self._shards[i]

    def file_bytes(self, i: int) -> int:
        return self._shards[i].table.file.bytes

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
        """Return the index of shard i; the arguments are not used, as the file is read in place.

        Raises ShardError if the file has changed since it was opened.
        """
        shard = self._shards[i]
        shard.table.file.check_same()
        return _shard_index(shard)

    def problem(self, i: int, full: bool) -> str | None:
        """Return what is wrong with shard i, None if nothing; with `full`, all of its rows are
        read. Raises ShardError."""
        shard = self._shards[i]
        shard.table.file.check_same()
        for group in range(shard.first, shard.end if full else shard.first):
            shard.table.rows(group)
        return None


def _ranges(table: TableFile) -> Iterator[tuple[int, int]]:
    """Yield the groups of each shard: small ones together."""
    first, rows, size = 0, 0, 0
    for number, group in enumerate(table.groups):
        if number > first and (rows + group.rows > SHARD_ROWS or size + group.bytes > SHARD_BYTES):
            yield first, number
            first, rows, size = number, 0, 0
        rows, size = rows + group.rows, size + group.bytes
    if len(table.groups) > first:
        yield first, len(table.groups)


def _row(shard: TableShard) -> ShardRow:
    table, first, end, _ = shard
    groups = table.groups[first:end]
    digest = blake3(b"hpckit-table-1")
    names = json.dumps(table.columns)  # the schema's bytes may change with the version of pyarrow
    for part in (names.encode(), table.file.content.encode()):
        digest.update(len(part).to_bytes(8, "little") + part)
    digest.update(np.array([first, end, *(group.rows for group in groups)], "<i8").tobytes())
    size = sum(group.bytes for group in groups)
    return ShardRow(table.file.path, shard.rows, size, None, None, digest.hexdigest())


def _shard_index(shard: TableShard) -> ShardIndex:
    """Return an index of the rows' keys; a row has no place of its own in the file."""
    count = shard.rows
    zeros = np.zeros(count, np.uint8)
    columns: dict[str, Any] = {
        **number_keys(shard.number, count),
        "begin": zeros,
        "first": narrow(np.arange(count + 1)),
        "offset": zeros,
        "size": zeros,
        "extension": zeros,
        "header": zeros,
        "extension_at": narrow([0, len("row")]),
        "extensions": np.frombuffer(b"row", np.uint8),
    }
    file = shard.table.file
    return ShardIndex({"bytes": file.bytes, "tag": file.tag, "hash": None, "tokens": None}, columns)
