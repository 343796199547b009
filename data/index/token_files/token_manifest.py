"""The manifest of token files: their documents as the samples of shards, which are ranges of the
files and are not stored."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from data.errors import DataError, ShardError
from data.index import column_container
from data.index.in_place_manifest import InPlaceManifest, in_place_index
from data.index.manifest_rows import KIND, ShardRow, pack_rows
from data.index.shard.shard_index import ShardIndex
from data.index.token_files.token_documents import TokenDocuments, shard_borders
from data.index.token_files.token_file import TokenFile

EXTENSION = "bin"
"""The extension of a sample's only member: its tokens as they are stored."""


class _Section(NamedTuple):
    """The documents first .. end - 1 of a file; `number` is that of the first one in the
    dataset."""

    documents: TokenDocuments
    first: int
    end: int
    number: int


class TokenManifest(InPlaceManifest):
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

    def file_of(self, i: int) -> TokenFile:
        return self._sections[i].documents.file

    def index_of(self, i: int) -> ShardIndex:
        documents, first, end, number = self._sections[i]
        begins, lengths = documents.checked_table(first, end)
        return in_place_index(
            documents.file,
            number,
            begins,
            lengths * documents.file.item,
            EXTENSION,
            tokens=f"{EXTENSION}:{self.dtype}",
            token_counts=lengths.astype(np.uint32),
        )

    def content_problem(self, i: int) -> str | None:
        documents, first, end, _ = self._sections[i]
        return documents.problem(first, end)

    def check(self, i: int) -> None:
        super().check(i)
        documents, first, end, _ = self._sections[i]
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
