"""Token files of Megatron-LM: the tokens of all sequences end to end in `NAME.bin`, and where each
sequence and each document begins in `NAME.idx`.

The index of version 1, little-endian: magic (9 bytes), version u64, code of the dtype u8, number of
sequences s u64, number of document borders d u64, then the tokens of each sequence i32[s], the
offset of each one in the .bin i64[s], the first sequence of each document and s at the end i64[d],
and maybe the mode of each sequence i8[s], which is not used here.
"""

import struct
from pathlib import Path

import numpy as np

from data.errors import IndexFileError, ShardError
from data.index.shard.shard_index import IntArray
from data.index.token_files.token_documents import DocumentTable, TokenDocuments
from data.index.token_files.token_file import (
    TokenFile,
    examined,
    read_numbers,
    read_range,
    status_of,
)
from data.index.token_files.token_file_options import TokenFiles

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
MOST_SEQUENCES = 1 << 26
"""The most sequences of the documents of one shard."""
_HEAD = struct.Struct("<9sQBQQ")
_DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_FLOATS = {6: "float64", 7: "float32"}
_AGAIN = "copy both files again, or make them again with tools/preprocess_data.py"


def has_index(path: Path) -> bool:
    """Return whether the `.idx` at `path` is one of Megatron."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def open_megatron_files(path: Path, options: TokenFiles) -> TokenDocuments:
    """Return the documents of the pair whose tokens are at `path`. Raises DataError if it is
    damaged or contradicts `options`."""
    index = path.with_suffix(".idx")
    known = f"{index.name} says where its documents end"
    options.refuse(path, known, "end_of_text")
    options.refuse(path, "the files of Megatron have no columns", "column")
    dtype, sequences, borders = _header(index)
    if options.dtype is not None and options.dtype != dtype:
        options.refuse(path, f"its tokens are {dtype} by {index.name}", "dtype")
    size, _ = status_of(str(path))
    item = np.dtype(dtype).itemsize
    if size % item:
        problem = f"has {size} bytes, which is not a multiple of the {item} bytes of {dtype}"
        raise ShardError(path, size, f"{problem}; the file is truncated: {_AGAIN}")
    if sequences == 0 or borders < 2:
        raise IndexFileError(index, "lists no documents; leave these files out")
    return MegatronDocuments(examined(path, dtype), str(index), sequences, borders - 1)


class MegatronDocuments(TokenDocuments):
    """The documents of a pair, each of which is one sequence or several that lie end to end."""

    def __init__(self, file: TokenFile, index: str, sequences: int, count: int) -> None:
        super().__init__(file, count)
        self.index = index
        self.sequences = sequences

    def table(self, first: int, end: int) -> DocumentTable:
        borders = self._borders(first, end)
        begin, after = int(borders[0]), int(borders[-1])
        lengths = read_numbers(self.index, _HEAD.size + 4 * begin, after - begin, "int32")
        at = _HEAD.size + 4 * self.sequences
        pointers = read_numbers(self.index, at + 8 * begin, after - begin, "int64")
        if bool((lengths < 0).any()):
            which = begin + int((lengths < 0).argmax())
            raise IndexFileError(self.index, f"sequence {which} has a negative length; {_AGAIN}")
        self._check_contiguous(borders - begin, lengths, pointers, begin)
        sums = np.concatenate([[0], np.cumsum(lengths)])
        inside = borders - begin
        begins = np.append(pointers, 0)[inside[:-1]]
        tokens = sums[inside[1:]] - sums[inside[:-1]]
        return DocumentTable(np.where(tokens > 0, begins, 0), tokens)

    def _borders(self, first: int, end: int) -> IntArray:
        """Return the first sequence of some documents, and the one after their last. Raises
        IndexFileError."""
        at = _HEAD.size + 12 * self.sequences
        borders = read_numbers(self.index, at + 8 * first, end - first + 1, "int64")
        rises = bool(np.all(borders[1:] >= borders[:-1]))
        begins_right = first > 0 or int(borders[0]) == 0
        ends_right = end < self.count or int(borders[-1]) == self.sequences
        inside = int(borders[0]) >= 0 and int(borders[-1]) <= self.sequences
        if not (rises and inside and begins_right and ends_right):
            problem = f"documents {first}..{end - 1} are of sequences {borders[0]}..{borders[-1]}"
            problem = f"{problem}, and there are {self.sequences}"
            raise IndexFileError(self.index, f"is damaged: {problem}; {_AGAIN}")
        if int(borders[-1] - borders[0]) > MOST_SEQUENCES:
            problem = f"{borders[-1] - borders[0]} sequences in documents {first}..{end - 1}"
            raise IndexFileError(self.index, f"{problem}: at most {MOST_SEQUENCES}; {_AGAIN}")
        return borders

    def _check_contiguous(
        self, inside: IntArray, lengths: IntArray, pointers: IntArray, begin: int
    ) -> None:
        """Raise IndexFileError for a document whose sequences do not lie end to end."""
        gaps = np.flatnonzero(pointers[1:] - pointers[:-1] != lengths[:-1] * self.file.item) + 1
        split = np.setdiff1d(gaps, inside)
        if split.size:
            which = begin + int(split[0])
            raise IndexFileError(
                self.index,
                f"sequence {which} does not follow the one before it in the .bin, and both are of"
                f" one document; {_AGAIN}",
            )


def _header(index: Path) -> tuple[str, int, int]:
    """Return (dtype, number of sequences, number of document borders). Raises DataError."""
    size, _ = status_of(str(index))
    if size < _HEAD.size:
        raise IndexFileError(index, f"has {size} bytes: truncated; {_AGAIN}")
    magic, version, code, sequences, borders = _HEAD.unpack(read_range(str(index), 0, _HEAD.size))
    if magic != MAGIC:
        raise IndexFileError(index, f"is not an index of Megatron (MMIDIDX); {_AGAIN}")
    if version != VERSION:
        raise IndexFileError(index, f"is of version {version}, and {VERSION} is read; {_AGAIN}")
    if code in _FLOATS:
        raise IndexFileError(index, f"holds {_FLOATS[code]}, and tokens are whole numbers")
    if code not in _DTYPES:
        raise IndexFileError(index, f"has an unknown dtype, of code {code}; {_AGAIN}")
    due = _HEAD.size + 12 * sequences + 8 * borders
    if size not in (due, due + sequences):
        problem = f"has {size} bytes, and {sequences} sequences and {borders} document borders take"
        raise IndexFileError(index, f"{problem} {due}; the file is damaged: {_AGAIN}")
    return _DTYPES[code], sequences, borders
