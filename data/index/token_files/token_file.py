"""A token file as it was when a dataset was opened, by which a later change is detected."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from data.errors import ShardError
from data.source.file import read_at, regular_file_version

PROBES = 64
"""The ranges of a file whose bytes are hashed, as hashing all of it would take too long."""
PROBE_BYTES = 4096

Range = tuple[int, int]
"""(offset, bytes)."""


@dataclass(frozen=True)
class TokenFile:
    """The facts of a file; `content` is the BLAKE3 (hex) of the bytes in `probes`, `tag` is its
    version, as of `file_version`."""

    path: str
    bytes: int
    tag: str | None
    dtype: str
    probes: tuple[Range, ...]
    content: str
    highest: int
    """The highest token in the probes."""

    @property
    def item(self) -> int:
        """The bytes of a token."""
        return np.dtype(self.dtype).itemsize

    def check_same(self) -> None:
        """Raise ShardError if the file is another one than it was: its size is compared and, if its
        time has changed, the probes."""
        size, tag = status_of(self.path)
        if size != self.bytes:
            problem = f"has {size} bytes, had {self.bytes} when the dataset was opened"
            raise ShardError(self.path, min(size, self.bytes), f"{problem}; {CHANGED}")
        if tag == self.tag:
            return
        digest, _ = _probed(self.path, self.dtype, self.probes)
        if digest != self.content:
            raise ShardError(self.path, 0, f"has changed since the dataset was opened; {CHANGED}")


CHANGED = "restore the file, or start a new run with the changed one"


def status_of(path: str) -> tuple[int, str | None]:
    """Return the (bytes, tag) of a file. Raises ShardError."""
    try:
        version = regular_file_version(path)
    except OSError as error:
        raise ShardError(path, 0, f"cannot be read: {error.strerror}") from error
    return version.bytes or 0, version.tag


def examined(path: Path, dtype: str, regions: Sequence[Range] | None = None) -> TokenFile:
    """Return the facts of a file whose tokens are in `regions`, by default everywhere. Raises
    ShardError."""
    size, tag = status_of(str(path))
    item = np.dtype(dtype).itemsize
    probes = _spread(size, item) if regions is None else _first_of(regions, item)
    digest, highest = _probed(str(path), dtype, probes)
    return TokenFile(str(path), size, tag, dtype, probes, digest, highest)


def probes_of(size: int, dtype: str) -> tuple[Range, ...]:
    """Return the probes of a file of `size` bytes whose tokens are everywhere."""
    return _spread(size, np.dtype(dtype).itemsize)


def read_range(path: str, offset: int, size: int) -> bytes:
    """Read a range of a file. Raises ShardError, also if the file ends before."""
    (data,) = _ranges(path, [(offset, size)])
    return data


def _ranges(path: str, ranges: Sequence[Range]) -> Iterator[bytes]:
    """Yield ranges of a file that is opened once. Raises as `read_range`."""
    offset = 0
    try:
        with open(path, "rb", buffering=0) as file:
            for offset, size in ranges:
                data = read_at(file.fileno(), offset, size)
                if len(data) < size:
                    problem = f"ends at byte {offset + len(data)}, {offset + size} are needed"
                    raise ShardError(path, offset + len(data), f"{problem}; copy the file again")
                yield data
    except OSError as error:
        raise ShardError(path, offset, f"cannot be read: {error.strerror}") from error


def read_numbers(path: str, offset: int, count: int, dtype: str) -> npt.NDArray[np.int64]:
    """Read `count` little-endian numbers of `dtype` as int64. Raises ShardError."""
    kind = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(read_range(path, offset, count * kind.itemsize), kind).astype(np.int64)


def _spread(size: int, item: int) -> tuple[Range, ...]:
    """Return ranges all over a file, which begin at a token; the last one reaches the end."""
    if size <= PROBES * PROBE_BYTES:
        return ((0, size),)
    last = size - PROBE_BYTES
    starts = (last * number // (PROBES - 1) for number in range(PROBES))
    return tuple((start - start % item, PROBE_BYTES) for start in starts)


def _first_of(regions: Sequence[Range], item: int) -> tuple[Range, ...]:
    """Return the first bytes of regions all over the file."""
    most = PROBE_BYTES - PROBE_BYTES % item
    chosen = sorted({(len(regions) - 1) * n // (PROBES - 1) for n in range(PROBES)})
    return tuple((regions[i][0], min(regions[i][1], most)) for i in chosen if regions)


def _probed(path: str, dtype: str, probes: Sequence[Range]) -> tuple[str, int]:
    digest, highest = blake3(b"hpckit-token-file-1"), 0
    kind = np.dtype(dtype).newbyteorder("<")
    for content in _ranges(path, probes):
        size = len(content)
        digest.update(content)
        tokens = np.frombuffer(content[: size - size % kind.itemsize], kind)
        highest = max(highest, int(tokens.max(initial=0)))
    return digest.hexdigest(), highest
