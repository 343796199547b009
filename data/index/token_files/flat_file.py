"""Flat files of tokens, as nanoGPT writes them: nothing but numbers of one type.

Documents end with a token that the user names; their places are found by reading the file once and
stored beside it, as `FILE.index`. Without such a token, the documents are windows of equal length.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data.durable_files import write_atomically
from data.errors import DataError, IndexFileError, ShardError
from data.index import column_container
from data.index.column_container import Column
from data.index.shard import sidecar
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
from data.source.protocol import short_tag

KIND = "documents"
DTYPE = "uint16"
"""The type of tokens that nanoGPT writes."""

_CHUNK = 16 << 20  # bytes, a multiple of every item
_FEW_TOKENS = 8  # a document of text has more, on average
_MANY_DOCUMENTS = 1 << 20  # from here on, their average length is checked
_LLM_C = 20240520  # the first int32 of the files of llm.c and modded-nanogpt
_HIGH_HALF = 16  # the high halves of tokens of 32 bits are below this

_log = logging.getLogger(__name__)


def open_flat_file(path: Path, options: TokenFiles) -> TokenDocuments:
    """Return the documents of a flat file. Raises DataError if it cannot be read as `options`
    say."""
    options.refuse(path, "it is a flat file of tokens, which has no columns", "column")
    size, _ = status_of(str(path))
    dtype = options.dtype or DTYPE
    item = np.dtype(dtype).itemsize
    if size == 0:
        raise ShardError(path, 0, "is empty; write tokens into it, or leave it out")
    if size % item:
        problem = f"has {size} bytes, which is not a multiple of the {item} bytes of {dtype}"
        raise ShardError(path, size, f"{problem}; the file is truncated, or dtype is another one")
    _refuse_header(path, size)
    if options.dtype is None:
        _refuse_wide(path, size)
    file = examined(path, dtype)
    if options.end_of_text is not None:
        return EndedDocuments(file, *_ends(file, options.end_of_text))
    if options.block_size is None:
        raise DataError(
            f"{path}: a flat file of tokens does not say where its documents end: give"
            " end_of_text=TOKEN, or block_size=TOKENS for windows of this length"
        )
    return FixedWindows(file, options.block_size)


class FixedWindows(TokenDocuments):
    """Windows of `length` tokens; the last one has the rest. They do not overlap."""

    def __init__(self, file: TokenFile, length: int) -> None:
        self.length = length
        self.tokens = file.bytes // file.item
        super().__init__(file, -(-self.tokens // length))

    def table(self, first: int, end: int) -> DocumentTable:
        begins = np.arange(first, end, dtype=np.int64) * self.length
        return DocumentTable(begins * self.file.item, np.minimum(self.length, self.tokens - begins))

    def summary(self, first: int, end: int) -> tuple[int, str]:
        """Return what the lengths determine, without a list of them."""
        tokens = min(end * self.length, self.tokens) - first * self.length
        return tokens, self._digest(first, end, np.array([self.length, tokens], np.int64))


class EndedDocuments(TokenDocuments):
    """Documents that end with the token `end`; document i has the tokens borders[i] .. borders[i +
    1] - 1 of the file."""

    def __init__(self, file: TokenFile, end: int, borders: Column, highest: int) -> None:
        super().__init__(file, len(borders) - 1)
        self.end = end
        self.borders = borders
        self._highest = highest

    @property
    def highest(self) -> int:
        return self._highest

    def table(self, first: int, end: int) -> DocumentTable:
        borders = self.borders[first : end + 1].astype(np.int64)
        return DocumentTable(borders[:-1] * self.file.item, np.diff(borders))

    def problem(self, first: int, end: int) -> str | None:
        borders = self.borders[first : end + 1].astype(np.int64)
        begin, after = int(borders[0]), int(borders[-1])
        found = np.concatenate([[begin, after], *self._scanned(begin, after)])
        if np.array_equal(np.unique(found), borders):
            return None
        return f"documents {first}..{end - 1} end elsewhere than when the file was indexed"

    def _scanned(self, begin: int, end: int) -> Iterator[IntArray]:
        item, step = self.file.item, _CHUNK // self.file.item
        for at in range(begin, end, step):
            count = min(step, end - at)
            tokens = read_numbers(self.file.path, at * item, count, self.file.dtype)
            yield np.flatnonzero(tokens == self.end) + (at + 1)


def _refuse_header(path: Path, size: int) -> None:
    """Raise ShardError for a file with a header, whose bytes would be taken for tokens."""
    head = read_range(str(path), 0, min(size, 8))
    if len(head) == 8 and int.from_bytes(head[:4], "little") == _LLM_C:
        raise ShardError(
            path,
            0,
            "has the header of llm.c, of 1,024 bytes, and a flat file has none;"
            f" `tail -c +1025 {path.name} > tokens.bin` removes it",
        )
    if head.startswith(b"\x93NUMPY"):
        raise ShardError(
            path, 0, "is a .npy file, and a flat file has no header; write it by array.tofile"
        )


def _refuse_wide(path: Path, size: int) -> None:
    """Raise ShardError for tokens that look like numbers of 32 bits where no type is given."""
    count = min(size, 1 << 20) // 4
    if count == 0:
        return
    halves = read_numbers(str(path), 0, 2 * count, "uint16").reshape(-1, 2)
    low, high = int(halves[:, 0].max()), int(halves[:, 1].max())
    if high < _HIGH_HALF <= 256 <= low:
        raise ShardError(
            path,
            0,
            f"looks like uint32 and not {DTYPE}: every second number is at most {high}; give"
            " dtype=uint32, or dtype=uint16 if it is right",
        )


def _ends(file: TokenFile, end: int) -> tuple[int, Column, int]:
    """Return (end, borders of the documents, highest token), stored or found now."""
    beside = Path(sidecar.beside(file.path))
    named = f"{file.path}\0{file.dtype}\0{end}"
    away = sidecar.in_folder(named, file.bytes, short_tag(file.tag), None)
    facts = {"bytes": file.bytes, "tag": file.tag, "dtype": file.dtype, "end": end}
    for place in (beside, away):
        if (found := _stored(place, facts)) is not None:
            return end, *found
    borders, highest = _scan(file, end)
    content = column_container.pack(KIND, {**facts, "highest": highest}, {"borders": borders})
    for place in (beside, away):
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(place, content)
            break
        except OSError as error:
            level = logging.INFO if place == beside else logging.WARNING
            _log.log(level, "%s: its index cannot be kept as %s (%s)", file.path, place, error)
    return end, borders, highest


def _stored(place: Path, facts: Mapping[str, object]) -> tuple[Column, int] | None:
    """Return (borders, highest token) if they are stored for exactly this file."""
    try:
        found = column_container.load_mapped(place, KIND)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, IndexFileError) as error:
        _log.warning("the index of a token file cannot be used and is rebuilt: %s", error)
        return None
    borders, highest = found.columns.get("borders"), found.meta.get("highest")
    if borders is None or type(highest) is not int:
        return None
    if {name: found.meta.get(name) for name in facts} != facts:
        return None
    return (borders, highest) if _are_borders(borders, facts) else None


def _are_borders(borders: Column, facts: Mapping[str, object]) -> bool:
    tokens = int(str(facts["bytes"])) // np.dtype(str(facts["dtype"])).itemsize
    if len(borders) < 2 or int(borders[0]) != 0 or int(borders[-1]) != tokens:
        return False
    return bool(np.all(borders[1:] > borders[:-1]))


def _scan(file: TokenFile, end: int) -> tuple[Column, int]:
    """Read the whole file and return (borders of the documents, highest token)."""
    _log.info("%s: is read once to find where its documents end", file.path)
    kind, total = np.dtype(file.dtype).newbyteorder("<"), file.bytes // file.item
    parts: list[npt.NDArray[np.int64]] = [np.zeros(1, np.int64)]
    documents = highest = 0
    for begin in range(0, file.bytes, _CHUNK):
        size = min(_CHUNK, file.bytes - begin)
        tokens = np.frombuffer(read_range(file.path, begin, size), kind)
        highest = max(highest, int(tokens.max()))
        ends = np.flatnonzero(tokens == end) + (begin // file.item + 1)
        documents += ends.size
        parts.append(ends)
        done = (begin + size) // file.item
        if documents > _MANY_DOCUMENTS and done < _FEW_TOKENS * documents:
            raise ShardError(
                file.path,
                begin,
                f"end_of_text={end} occurs {documents} times in the first {done} tokens, which is"
                " too often for the end of a text; give the right token, and dtype if it is not"
                f" {file.dtype}",
            )
    if documents == 0:
        raise ShardError(
            file.path,
            0,
            f"end_of_text={end} does not occur in its {total} tokens of {file.dtype}, of which the"
            f" highest is {highest}; give the right token, the right dtype, or no end_of_text for"
            " windows of equal length",
        )
    if int(parts[-1][-1] if parts[-1].size else -1) != total:
        parts.append(np.array([total], np.int64))
    return column_container.narrow(np.concatenate(parts)), highest
