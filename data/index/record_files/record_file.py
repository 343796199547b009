"""A file of records: where each of them is, and how its fields are read."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np

from data.errors import DataError, ShardError
from data.index.record_files.known_files import Examine, with_known_files
from data.index.shard.shard_index import IntArray
from data.index.token_files.token_file import TokenFile, read_numbers

Decoder: TypeAlias = Callable[[bytes], dict[str, Any]]
"""Returns the fields of a record by their names. It can be pickled, and raises ValueError for bytes
that are no record."""

MOST_RECORDS = 1 << 31
RESERVED = ("__key__", "__url__")
_THREADS = 8


@dataclass(frozen=True)
class RecordFile:
    """The records of a file, in order."""

    file: TokenFile
    """The facts by which another file is noticed."""
    begins: IntArray
    """The offset of each record, shape (records,); of any type of whole numbers."""
    lengths: IntArray
    """The bytes of each record, as `begins`."""
    decode: Decoder
    layout: str
    """What the fields of the records are, which is a part of the dataset's fingerprint."""

    @property
    def count(self) -> int:
        return len(self.begins)


def of_offset_table(file: TokenFile, count: int, decode: Decoder, layout: str) -> RecordFile:
    """Return the records of a file that begins with their number and `count` + 1 offsets, all of
    uint32, as MDS and LitData write them. Raises ShardError for a table that cannot be one."""
    path = Path(file.path)
    most = min(count + 2, file.bytes // 4)
    table = read_numbers(str(path), 0, max(most, 1), "uint32")
    if (found := int(table[0])) != count:
        raise ShardError(path, 0, f"has {found} samples, but index.json says {count}; copy both")
    if 4 * (count + 2) > file.bytes:
        problem = f"cut short: {count} offsets are needed, and it has {file.bytes} bytes"
        raise ShardError(path, file.bytes, f"{problem}; copy it again")
    offsets = table[1:]
    steps = np.diff(offsets)
    if int(offsets[0]) < 4 * (count + 2) or bool((steps < 0).any()):
        wrong = int(np.argmax(steps < 0)) if bool((steps < 0).any()) else 0
        raise ShardError(path, 4 + 4 * wrong, f"the offset of sample {wrong} is impossible")
    if int(offsets[-1]) > file.bytes:
        wrong = int(np.searchsorted(offsets, file.bytes, side="right")) - 1
        problem = f"cut short: sample {wrong} ends at byte {offsets[wrong + 1]}"
        raise ShardError(path, file.bytes, f"{problem}, the file at {file.bytes}; copy it again")
    return RecordFile(file, offsets[:-1], steps, decode, layout)


def open_each(
    open_one: Callable[[int, Examine], RecordFile], count: int, place: Path
) -> list[RecordFile]:
    """Return the files 0 .. count - 1 that the index `place` lists, opened in threads, as the reads
    may wait for a network file system. Raises what the first one raises that fails."""

    def open_all(examine: Examine) -> list[RecordFile]:
        threads = ThreadPoolExecutor(_THREADS)
        try:
            return list(threads.map(lambda number: open_one(number, examine), range(count)))
        finally:
            threads.shutdown(cancel_futures=True)

    files: list[RecordFile] = with_known_files(place, count, open_all)
    return files


def check_names(names: list[str], place: Path) -> None:
    """Raise DataError for names of fields that cannot be members of a sample."""
    are_text = all(isinstance(name, str) for name in names)
    if not are_text or set(names) & set(RESERVED) or len(set(names)) < len(names):
        raise DataError(
            f"{place}: the fields {names} are not distinct text, or have a reserved name"
        )


def inside(folder: Path, name: Any, place: Path) -> Path:
    """Return the path of a file that an index names, which must be in its folder. Raises
    DataError."""
    path = PurePosixPath(name) if isinstance(name, str) and name else None
    if path is None or path.is_absolute() or ".." in path.parts or "\0" in str(path):
        raise DataError(f"{place}: {name!r} is not the name of a file beside it")
    return folder / path


def take(content: bytes, at: int, size: int) -> bytes:
    """Return `size` bytes of a record. Raises ValueError if it has fewer."""
    if size < 0 or at + size > len(content):
        raise ValueError(f"a field needs the bytes {at} to {at + size}, of {len(content)}")
    return content[at : at + size]


def byte_strings(content: bytes, at: int = 0) -> list[bytes]:
    """Return the images of a list from byte `at` on: their number, their sizes, all of uint32, and
    their bytes. Raises ValueError."""
    count = int.from_bytes(take(content, at, 4), "little")
    at += 4
    sizes = np.frombuffer(take(content, at, 4 * count), "<u4").tolist()
    at += 4 * count
    found = []
    for size in sizes:
        found.append(take(content, at, size))
        at += size
    if at != len(content):
        raise ValueError(f"its images end at byte {at}, of {len(content)}")
    return found
