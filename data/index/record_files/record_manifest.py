"""The manifest of files of records, whose shards are ranges of their records and not stored."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from data.errors import ShardError
from data.index import column_container
from data.index.in_place_manifest import InPlaceManifest, in_place_index
from data.index.manifest_rows import KIND, ShardRow, pack_rows
from data.index.record_files.record_file import MOST_RECORDS, Decoder, RecordFile
from data.index.shard.shard_index import ShardIndex
from data.index.token_files.token_documents import SHARD_BYTES, SHARD_DOCUMENTS
from data.index.token_files.token_file import TokenFile, read_range


class _Section(NamedTuple):
    """The records first .. end - 1 of a file; `number` is that of the first one in the dataset."""

    file: RecordFile
    first: int
    end: int
    number: int


class RecordManifest(InPlaceManifest):
    """The manifest of some files of records, in order. The key of a record is its number in the
    dataset, in 12 digits."""

    def __init__(self, files: Sequence[RecordFile], place: str) -> None:
        self._sections = _sections(files)
        content = pack_rows([_row(section) for section in self._sections], "", None)
        super().__init__(column_container.unpack(content, KIND, place), "", place)

    def decoder(self, i: int) -> Decoder:
        """Return what reads the fields of a record of shard i."""
        return self._sections[i].file.decode

    def file_of(self, i: int) -> TokenFile:
        return self._sections[i].file.file

    def index_of(self, i: int) -> ShardIndex:
        records, first, end, number = self._sections[i]
        places = records.begins[first:end], records.lengths[first:end]
        return in_place_index(records.file, number, *places, "record")

    def content_problem(self, i: int) -> str | None:
        records, first, end, number = self._sections[i]
        for at in range(first, end):
            begin, length = int(records.begins[at]), int(records.lengths[at])
            try:
                records.decode(read_range(records.file.path, begin, length))
            except (ValueError, RecursionError) as error:
                return f"record {number + at - first} at byte {begin}: {error}"
        return None


def _sections(files: Sequence[RecordFile]) -> list[_Section]:
    found: list[_Section] = []
    number = 0
    for records in files:
        count = records.count
        if number + count > MOST_RECORDS:
            raise ShardError(records.file.path, 0, f"more than {MOST_RECORDS} records are not read")
        shards = max(1, -(-records.file.bytes // SHARD_BYTES), -(-count // SHARD_DOCUMENTS))
        shards = min(shards, max(1, count))
        borders = [count * n // shards for n in range(shards + 1)]
        found += [_Section(records, *pair, number + pair[0]) for pair in pairwise(borders)]
        number += count
    return found


def _row(section: _Section) -> ShardRow:
    records, first, end, _ = section
    lengths = records.lengths[first:end]
    digest = blake3(b"hpckit-records-1")
    for text in (records.layout, records.file.content):
        digest.update(len(text).to_bytes(8, "little") + text.encode())
    digest.update(np.array([first, end], "<i8").tobytes())
    digest.update(np.ascontiguousarray(lengths, "<i8").tobytes())
    size = int(lengths.sum())
    return ShardRow(records.file.path, end - first, size, None, None, digest.hexdigest())
