"""The manifest of tables on disk, whose shards are successive groups of rows and not stored."""

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from data.index import column_container
from data.index.in_place_manifest import InPlaceManifest, in_place_index
from data.index.manifest_rows import KIND, ShardRow, pack_rows
from data.index.shard.shard_index import ShardIndex
from data.index.table_files.table_file import TableFile
from data.index.token_files.token_file import TokenFile

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


class TableManifest(InPlaceManifest):
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

    def file_of(self, i: int) -> TokenFile:
        return self._shards[i].table.file

    def index_of(self, i: int) -> ShardIndex:
        """Return an index of the rows' keys; a row has no place of its own in the file."""
        shard = self._shards[i]
        zeros = np.zeros(shard.rows, np.uint8)
        return in_place_index(shard.table.file, shard.number, zeros, zeros, "row")

    def content_problem(self, i: int) -> str | None:
        shard = self._shards[i]
        for group in range(shard.first, shard.end):
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
