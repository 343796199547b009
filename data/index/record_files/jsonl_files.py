"""Files of lines of JSON, each of which is an object: a record with its fields."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from data.durable_files import locked, write_atomically
from data.errors import IndexFileError, ShardError
from data.index import column_container
from data.index.column_container import Column, narrow
from data.index.record_files.record_file import RESERVED, RecordFile
from data.index.shard.shard_index import IntArray
from data.index.token_files.token_file import TokenFile, examined, read_range

SUFFIXES = (".jsonl", ".ndjson")
_KIND = "lines"
_PIECE = 16 << 20
_NEWLINE = 10
_SPACES = (9, 13, 32)  # tab, carriage return and space
_FIRST = 3  # lines of a file that are looked at when it is opened
_FEW_BYTES = 64 << 20  # of a file whose lines are found again each time

_log = logging.getLogger(__name__)


def decode_line(content: bytes) -> dict[str, Any]:
    """Return the fields of a line. Raises ValueError if it is no object of JSON."""
    found = json.loads(content)
    if not isinstance(found, dict):
        raise ValueError(f"a line is {type(found).__name__}, not an object of JSON")
    wrong = [name for name in RESERVED if name in found]
    if wrong:
        raise ValueError(f"the field {wrong[0]!r} has a reserved name")
    return found


def open_jsonl(path: Path) -> RecordFile:
    """Return the lines of a file, without blank ones. A large file is read once, and the places of
    its lines are kept beside it (`FILE.index`). Raises ShardError, also if none of its first lines
    is an object of JSON: one that is damaged is an error when it is read."""
    file = examined(path, "uint8")
    begins, lengths = _lines(path, file)
    _check_first(path, begins[:_FIRST].tolist(), lengths[:_FIRST].tolist())
    return RecordFile(file, begins, lengths, decode_line, "jsonl")


def _check_first(path: Path, begins: list[int], lengths: list[int]) -> None:
    problem = ""
    for begin, length in zip(begins, lengths, strict=True):
        try:
            decode_line(read_range(str(path), begin, length))
        except (ValueError, RecursionError) as error:
            problem = problem or str(error)
        else:
            return
    if problem:
        raise ShardError(
            path,
            begins[0],
            f"its lines are not objects of JSON, at least not the first ones ({problem:.200});"
            " write one object in each line",
        )


def _lines(path: Path, file: TokenFile) -> tuple[IntArray, IntArray]:
    place = path.with_name(f"{path.name}.index")
    if (known := _known(place, file)) is not None:
        return known
    if file.bytes < _FEW_BYTES:
        return _scan(path)
    try:
        with locked(place.with_name(f".{place.name}.lock")):  # so that one process reads the file
            return _known(place, file) or _kept(path, place, file)
    except OSError as error:
        _log.info("%s: the places of its lines cannot be kept (%s)", path, error.strerror)
    return _scan(path)


def _kept(path: Path, place: Path, file: TokenFile) -> tuple[IntArray, IntArray]:
    """Return the places of the lines, and keep them if that is possible."""
    begins, lengths = _scan(path)
    meta = {"bytes": file.bytes, "tag": file.tag, "content": file.content}
    columns = {"begins": begins, "lengths": lengths}
    try:
        write_atomically(place, column_container.pack(_KIND, meta, columns))
    except OSError as error:
        _log.info("%s: the places of its lines cannot be kept (%s)", path, error.strerror)
    return begins, lengths


def _known(place: Path, file: TokenFile) -> tuple[IntArray, IntArray] | None:
    """Return the places that are kept, if they are of this version of the file: another one may
    have the same size, and the same bytes where it is probed."""
    if not place.is_file():
        return None
    try:
        found = column_container.load_mapped(place, _KIND)
    except (OSError, IndexFileError) as error:
        _log.warning("the index of a file of lines cannot be used and is rebuilt: %s", error)
        return None
    facts = {"bytes": file.bytes, "tag": file.tag, "content": file.content}
    if {name: found.meta.get(name) for name in facts} != facts:
        return None
    # copied, as another node may replace the file, whose pages are then gone on NFS
    begins, lengths = (np.array(found.columns[name]) for name in ("begins", "lengths"))
    return begins, lengths


def _scan(path: Path) -> tuple[IntArray, IntArray]:
    """Return the places of the lines that are not blank: (begins, lengths)."""
    ends: list[IntArray] = [np.zeros(0, np.int64)]  # of a file without lines, too
    firsts: list[Column] = [np.zeros(0, np.uint8)]  # the first byte of each line
    lasts: list[Column] = [np.zeros(0, np.uint8)]  # the one before its end
    at = 0
    last = b"\n"
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                codes = np.frombuffer(last + piece, np.uint8)
                lines = np.flatnonzero(codes[1:] == _NEWLINE)
                ends.append(lines + at)
                lasts.append(codes[lines])
                starts = np.flatnonzero(codes[:-1] == _NEWLINE) + 1
                firsts.append(codes[starts])
                at += len(piece)
                last = piece[-1:]
    except OSError as error:
        raise ShardError(path, at, f"cannot be read: {error.strerror}") from error
    if last != b"\n":
        ends.append(np.array([at]))
        lasts.append(np.frombuffer(last, np.uint8))
    found = np.concatenate(ends)
    begins = np.concatenate([[0], found[:-1] + 1]).astype(np.int64) if found.size else found
    lengths = found - begins
    begins_blank, ends_blank = (np.isin(np.concatenate(each), _SPACES) for each in (firsts, lasts))
    may_be_blank = begins_blank & ends_blank
    kept = (lengths > 1) | ((lengths == 1) & ~may_be_blank)  # such as a carriage return alone
    for line in np.flatnonzero(kept & may_be_blank).tolist():
        kept[line] = _is_text(path, int(begins[line]), int(lengths[line]))
    return narrow(begins[kept]), narrow(lengths[kept])


def _is_text(path: Path, begin: int, length: int) -> bool:
    """Return whether a line that begins and ends with a space has anything else."""
    end = begin + length
    pieces = (read_range(str(path), at, min(_PIECE, end - at)) for at in range(begin, end, _PIECE))
    return any(piece.strip() for piece in pieces)
