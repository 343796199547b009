"""The manifest of token files: their documents as the samples of shards, which are ranges of the
files and are not stored."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data.errors import DataError, ShardError
from data.index import column_container
from data.index.column_container import narrow
from data.index.manifest import Manifest
from data.index.manifest_rows import KIND, ShardRow, pack_rows
from data.index.shard.shard_index import ShardIndex
from data.index.tar.tar_walk import Read
from data.index.token_files.token_documents import TokenDocuments, shard_borders
from data.source.protocol import ObjectSource

EXTENSION = "bin"
"""The extension of a sample's only member: its tokens as they are stored."""
KEY_DIGITS = 12


class _Section(NamedTuple):
    """The documents first .. end - 1 of a file; `number` is that of the first one in the
    dataset."""

    documents: TokenDocuments
    first: int
    end: int
    number: int


class TokenManifest(Manifest):
    """The manifest of some token files, in order. Each file is examined when this is made.

    Raises DataError for files of different types of tokens, and for damaged ones.
    """

    def __init__(self, files: Sequence[TokenDocuments], place: str) -> None:
        self.files = tuple(files)
        dtypes = {one.file.dtype: one.file.path for one in reversed(files)}
        if len(dtypes) > 1:
            (one, first), (other, second) = list(dtypes.items())[:2]
            raise DataError(
                f"{first} has tokens of {one} and {second} of {other}; open them as two datasets"
            )
        self.dtype = files[0].file.dtype
        self._sections = _sections(files)
        rows = [_row(section) for section in self._sections]
        content = pack_rows(rows, "", f"{EXTENSION}:{self.dtype}")
        super().__init__(column_container.unpack(content, KIND, place), "", place)

    @property
    def highest_token(self) -> int | None:
        """The highest token of what was read of the files so far; None if nothing was."""
        return max((one.highest for one in self.files if one.highest is not None), default=None)

    def file_bytes(self, i: int) -> int:
        return self._sections[i].documents.file.bytes

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

        Raises ShardError if the file has changed since it was examined.
        """
        section = self._sections[i]
        self._check(i)
        begins, lengths = section.documents.checked_table(section.first, section.end)
        item = section.documents.file.item
        return _shard_index(section, begins, lengths, item, f"{EXTENSION}:{self.dtype}")

    def problem(self, i: int, full: bool) -> str | None:
        """Return what is wrong with shard i, None if nothing; with `full`, all of its bytes are
        read. Raises ShardError."""
        section = self._sections[i]
        self._check(i)
        return section.documents.problem(section.first, section.end) if full else None

    def _check(self, i: int) -> None:
        documents, first, end, _ = self._sections[i]
        documents.file.check_same()
        if documents.summary(first, end)[1] != self.digest(i):
            problem = "holds other documents than when the dataset was opened"
            raise ShardError(documents.file.path, 0, f"{problem}; start a new run with it")


def _sections(files: Sequence[TokenDocuments]) -> list[_Section]:
    found: list[_Section] = []
    number = 0
    for documents in files:
        borders = shard_borders(documents)
        found += [_Section(documents, *pair, number + pair[0]) for pair in pairwise(borders)]
        number += documents.count
    return found


def _row(section: _Section) -> ShardRow:
    documents, first, end, _ = section
    tokens, digest = documents.summary(first, end)
    size = tokens * documents.file.item
    return ShardRow(documents.file.path, end - first, size, None, None, digest, tokens)


def _shard_index(
    section: _Section,
    begins: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    item: int,
    way: str,
) -> ShardIndex:
    """Return an index whose samples have one member each, without a header before it."""
    count = len(lengths)
    places = narrow(begins)
    numbers = np.arange(section.number, section.number + count, dtype=np.int64)
    digits = numbers[:, None] // 10 ** np.arange(KEY_DIGITS - 1, -1, -1, dtype=np.int64) % 10
    columns: dict[str, Any] = {
        "begin": places,
        "first": narrow(np.arange(count + 1)),
        "offset": places,
        "size": narrow(lengths * item),
        "extension": np.zeros(count, np.uint8),
        "header": np.zeros(count, np.uint8),
        "key_at": narrow(np.arange(count + 1) * KEY_DIGITS),
        "keys": (digits + ord("0")).astype(np.uint8).ravel(),
        "extension_at": narrow([0, len(EXTENSION)]),
        "extensions": np.frombuffer(EXTENSION.encode(), np.uint8),
        "tokens": lengths.astype(np.uint32),
    }
    file = section.documents.file
    meta = {"bytes": file.bytes, "tag": file.tag, "hash": None, "tokens": way}
    return ShardIndex(meta, columns)
