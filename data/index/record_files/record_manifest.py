"""The manifest of files of records, whose shards are ranges of their records and not stored."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3

from data.errors import ShardError
from data.index import column_container
from data.index.column_container import Column, narrow
from data.index.manifest import Manifest
from data.index.manifest_rows import KIND, ShardRow, pack_rows
from data.index.record_files.record_file import MOST_RECORDS, Decoder, RecordFile
from data.index.shard.shard_index import ShardIndex
from data.index.tar.tar_walk import Read
from data.index.token_files.token_documents import SHARD_BYTES, SHARD_DOCUMENTS
from data.index.token_files.token_file import read_range
from data.source.protocol import ObjectSource

KEY_DIGITS = 12


class _Section(NamedTuple):
    """The records first .. end - 1 of a file; `number` is that of the first one in the dataset."""

    file: RecordFile
    first: int
    end: int
    number: int


class RecordManifest(Manifest):
    """The manifest of some files of records, in order. The key of a record is its number in the
    dataset, in 12 digits."""

    def __init__(self, files: Sequence[RecordFile], place: str) -> None:
        self._sections = _sections(files)
        content = pack_rows([_row(section) for section in self._sections], "", None)
        super().__init__(column_container.unpack(content, KIND, place), "", place)

    def decoder(self, i: int) -> Decoder:
        """Return what reads the fields of a record of shard i."""
        return self._sections[i].file.decode

    def file_bytes(self, i: int) -> int:
        return self._sections[i].file.file.bytes

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
        section = self._sections[i]
        section.file.file.check_same()
        return _shard_index(section)

    def problem(self, i: int, full: bool) -> str | None:
        """Return what is wrong with shard i, None if nothing; with `full`, all of its records are
        read. Raises ShardError."""
        records, first, end, number = self._sections[i]
        records.file.check_same()
        for at in range(first, end if full else first):
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


def _shard_index(section: _Section) -> ShardIndex:
    """Return an index whose samples have one member each, the record, without a header before
    it."""
    records, first, end, number = section
    count = end - first
    places = narrow(records.begins[first:end])
    columns: dict[str, Any] = {
        **number_keys(number, count),
        "begin": places,
        "first": narrow(np.arange(count + 1)),
        "offset": places,
        "size": narrow(records.lengths[first:end]),
        "extension": np.zeros(count, np.uint8),
        "header": np.zeros(count, np.uint8),
        "extension_at": narrow([0, len("record")]),
        "extensions": np.frombuffer(b"record", np.uint8),
    }
    meta = {"bytes": records.file.bytes, "tag": records.file.tag, "hash": None, "tokens": None}
    return ShardIndex(meta, columns)


def number_keys(first: int, count: int) -> dict[str, Column]:
    """Return the columns of the keys of an index, which are the numbers from `first` on."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    keys = np.empty((count, KEY_DIGITS), np.uint8)  # filled by columns, as a shard may be large
    for at in reversed(range(KEY_DIGITS)):
        keys[:, at] = numbers % 10 + ord("0")
        numbers //= 10
    return {"key_at": narrow(np.arange(count + 1) * KEY_DIGITS), "keys": keys.ravel()}
