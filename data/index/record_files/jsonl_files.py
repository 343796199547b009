"""Files of lines of JSON, each of which is an object: a record with its fields."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np

from data.durable_files import locked, write_atomically
from data.errors import IndexFileError, ShardError
from data.index import column_container
from data.index.column_container import narrow
from data.index.record_files.record_file import RESERVED, RecordFile
from data.index.shard.shard_index import IntArray
from data.index.token_files.token_file import TokenFile, examined

SUFFIXES = (".jsonl", ".ndjson")
_KIND = "lines"
_PIECE = 16 << 20
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
    """Return the lines of a file, without empty ones. A large file is read once, and the places of
    its lines are kept beside it (`FILE.index`). Raises ShardError."""
    file = examined(path, "uint8")
    begins, lengths = _lines(path, file)
    return RecordFile(file, begins, lengths, decode_line, "jsonl")


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
    meta = {"bytes": file.bytes, "content": file.content}
    columns = {"begins": begins, "lengths": lengths}
    try:
        write_atomically(place, column_container.pack(_KIND, meta, columns))
    except OSError as error:
        _log.info("%s: the places of its lines cannot be kept (%s)", path, error.strerror)
    return begins, lengths


def _known(place: Path, file: TokenFile) -> tuple[IntArray, IntArray] | None:
    """Return the places that are kept, if they are of this content."""
    if not place.is_file():
        return None
    try:
        found = column_container.load_mapped(place, _KIND)
    except (OSError, IndexFileError) as error:
        _log.warning("the index of a file of lines cannot be used and is rebuilt: %s", error)
        return None
    if (found.meta.get("bytes"), found.meta.get("content")) != (file.bytes, file.content):
        return None
    # copied, as another node may replace the file, whose pages are then gone on NFS
    begins, lengths = (np.array(found.columns[name]) for name in ("begins", "lengths"))
    return begins, lengths


def _scan(path: Path) -> tuple[IntArray, IntArray]:
    ends: list[IntArray] = [np.zeros(0, np.int64)]  # of a file without lines, too
    returns: list[IntArray] = [np.zeros(0, np.int64)]  # at the ends of lines
    at = 0
    last = b"\n"
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                codes = np.frombuffer(last + piece, np.uint8)
                lines = np.flatnonzero(codes[1:] == 10)
                ends.append(lines + at)
                returns.append((codes[lines] == 13).astype(np.int64))
                at += len(piece)
                last = piece[-1:]
    except OSError as error:
        raise ShardError(path, at, f"cannot be read: {error.strerror}") from error
    if last != b"\n":
        ends.append(np.array([at]))
        returns.append(np.array([last == b"\r"], np.int64))
    found = np.concatenate(ends)
    begins = np.concatenate([[0], found[:-1] + 1]).astype(np.int64) if found.size else found
    lengths = found - begins
    kept = lengths > np.concatenate(returns)  # a carriage return alone is an empty line, too
    return narrow(begins[kept]), narrow(lengths[kept])
