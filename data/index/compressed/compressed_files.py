"""Compressed files are unpacked into the cache, once for all processes of a node, and read there.

What gzip and zstd write allows no random access. What a file unpacks to is limited, so that a file
of a few bytes cannot fill the disk, and its checksum and end are checked.
"""

import logging
import os
import stat
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, TypeAlias

from blake3 import blake3

from data.durable_files import locked
from data.errors import BrokenTarError, DataError, NoCacheError, ShardError
from data.index import shard_access
from data.index.compressed.unpacked_files import FOLDER, FileUses, bytes_in
from data.index.shard_listing import Shards, is_folder_of_tars
from data.index.shard_patterns import entries_of, find_shards
from data.source.file import file_version, regular_file_version

SUFFIXES = (".gz", ".tgz", ".zst", ".zstd")
"""The ends of the names of compressed files."""
_TARS = (".tar.gz", ".tgz", ".tar.zst", ".tar.zstd")
_LINES = tuple(f"{kind}{end}" for kind in (".jsonl", ".ndjson") for end in SUFFIXES)
_OTHERS = (".jsonl", ".ndjson", ".parquet", ".arrow", ".bin")
_PIECE = 1 << 20
_COUNTED = 64 << 20  # bytes after which what others have written is counted again
_ZSTD_PIECE = 4096  # bytes that are decompressed at a time, to 128 MiB at most
_MOST_WINDOW = (
    1 << 27
)  # bytes of memory that a zstd frame may ask for, as much as `zstd` itself takes

_SKIPPABLE = tuple(bytes([0x50 + number]) for number in range(16))

_log = logging.getLogger(__name__)

Unpack: TypeAlias = Callable[[Path, int | None], Path]
"""Returns the unpacked file of a compressed one, which has that many bytes if it is known. Raises
ShardError, DataError."""


@dataclass(frozen=True)
class Unpacker:
    """Unpacks files into the folder of a cache, in which they are in use while `uses` exists.

    Args:
        most_bytes: what the cache may hold.
        make_room: removes unused files from the cache, of so many bytes, and returns whether it
            could.
    """

    cache: Path | None
    most_bytes: int
    make_room: Callable[[Path, int], bool]
    uses: FileUses = field(default_factory=FileUses)
    _counted: "_CountedRoom" = field(default_factory=lambda: _CountedRoom())

    def __call__(self, path: Path, size: int | None = None) -> Path:
        """Return the unpacked file, which is made if there is none of this version of `path`.

        Raises NoCacheError without a cache; ShardError if the file is damaged, truncated, has
        another length than `size`, or unpacks to more than the cache may hold.
        """
        if self.cache is None or not self.most_bytes:
            check_start(path)
            raise NoCacheError(
                f"{path} is compressed, and is unpacked into a cache: give cache=, a folder on a "
                "local disk, and cache_bytes=, the most that it may hold; or decompress it first"
            )
        folder = self.cache.expanduser().absolute() / FOLDER
        try:
            regular_file_version(str(path))
        except OSError as error:
            raise ShardError(path, 0, f"cannot be read: {error.strerror}") from error
        try:
            _make_private(folder)
            with path.open("rb") as source:
                version = file_version(os.fstat(source.fileno()))
                name = f"{path.absolute()}\n{version.bytes}\n{version.tag}"
                identity = blake3(name.encode("utf-8", "surrogateescape")).hexdigest()[:16]
                made = folder / f"{identity}-{_plain_name(path.name)}"
                if not self.uses.add(made):
                    with locked(folder / f".{made.name}.lock") as held:
                        if not made.exists():
                            self._make(path, source, made, size, held)
        except OSError as error:
            problem = f"cannot be unpacked into {folder}: {error.strerror}"
            raise ShardError(path, 0, problem) from error
        return made

    def _make(
        self, path: Path, source: BinaryIO, made: Path, size: int | None, is_locked: bool
    ) -> None:
        _log.info("%s: is unpacked into %s", path, made)
        # under the lock, the file that a killed process of this node has left is overwritten
        own = os.uname().nodename if is_locked else uuid.uuid4().hex
        temporary = made.with_name(f".{made.name}.{own}.tmp")
        temporary.unlink(missing_ok=True)
        version = file_version(os.fstat(source.fileno()))
        written = 0
        try:
            # large writes leave large pages in the page cache, of which samples are read faster
            with temporary.open("xb", buffering=_PIECE) as target:
                for piece in _pieces(path, source):
                    written += len(piece)
                    if size is not None and written > size:
                        problem = f"unpacks to more than the {size} bytes that its index says"
                        raise ShardError(path, source.tell(), problem)
                    if not self._counted.take(len(piece)):
                        self._counted.set(self._room(path, source, len(piece), written))
                    target.write(piece)
                target.flush()
                os.fsync(target.fileno())
            if size is not None and written < size:
                problem = f"unpacks to {written} bytes, {size} are expected; copy it again"
                raise ShardError(path, version.bytes or 0, problem)
            if file_version(os.fstat(source.fileno())) != version:
                raise ShardError(path, 0, "has changed while it was unpacked; open it again")
            temporary.replace(made)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()

    def _room(self, path: Path, source: BinaryIO, piece: int, written: int) -> int:
        """Return the bytes that there is room for, besides a piece of a file that is not on the
        disk yet; others are removed from the cache if it takes that. Raises ShardError if there is
        no room.

        Args:
            written: bytes of the file, with the piece.
        """
        assert self.cache is not None
        root = self.cache.expanduser().absolute()
        used = bytes_in(root) + bytes_in(root / FOLDER) + piece
        if used > self.most_bytes and self.make_room(root, used - self.most_bytes):
            used = bytes_in(root) + bytes_in(root / FOLDER) + piece
        if used > self.most_bytes:
            raise ShardError(
                path,
                source.tell(),
                f"unpacks to more than cache_bytes={self.most_bytes} allows, of which "
                f"{max(0, used - written)} are used by shards and unpacked files that are in use: "
                "raise cache_bytes if you trust the file",
            )
        return self.most_bytes - used


class _CountedRoom:
    """The bytes that may be written before the files of the cache are counted again, as other
    processes write, too: for many small files, to count them takes longer than to unpack one.
    Thread-safe."""

    def __init__(self) -> None:
        self._left = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take so many bytes; returns False if there are not so many."""
        with self._lock:
            if self._left < size:
                return False
            self._left -= size
            return True

    def set(self, room: int) -> None:
        """Note that there is room for so many bytes."""
        with self._lock:
            self._left = min(room, _COUNTED)


def unpacked_shards(shards: Shards, unpack: Unpack, *, skip_broken: bool = False) -> Shards:
    """Return the shards with the unpacked files in the place of compressed ones; unchanged if there
    are none. With `skip_broken`, files that are damaged or cut short are left out with a warning,
    if there are others. Raises DataError, and what `unpack` raises."""
    items: Sequence[str | Path] = [shards] if isinstance(shards, str | Path) else shards
    found = [_compressed(str(item)) for item in items]
    if not any(found):
        return shards
    listed: list[str | Path] = []
    broken: list[BrokenTarError] = []
    for item, files in zip(items, found, strict=True):
        if not files:
            listed.append(item)
        for path in files:
            try:
                listed.append(str(unpack(path, None)))
            except BrokenTarError as error:
                if not skip_broken:
                    raise
                broken.append(error)
    if broken and not listed:
        raise broken[0]
    for left_out in broken:
        _log.warning("a broken shard is left out, with all of its samples: %s", left_out)
    return listed


def _make_private(folder: Path) -> None:
    """Make the folder and the cache that it is in, for this user alone. Raises OSError; DataError
    if other users may have changed what is there."""
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_mode & 0o022:
        raise DataError(
            f"cache {folder}: other users can write to it and may have changed its files; remove "
            "it, or choose another cache"
        )


def check_start(path: Path) -> None:
    """Raise ShardError if the file cannot be read, or does not begin as a compressed file."""
    try:
        regular_file_version(str(path))
        with path.open("rb") as source:
            next(_pieces(path, source), b"")
    except OSError as error:
        raise ShardError(path, 0, f"cannot be read: {error.strerror}") from error


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed, by its name."""
    return path.name.endswith(SUFFIXES)


def _compressed(item: str) -> list[Path]:
    """Return the compressed files of an item, none if it is something else. Raises DataError."""
    if shard_access.is_url(item):
        if not shard_access.is_pipe(item):
            instead = "copy them, or decompress them where they are: tars are read from any URL"
            shard_access.refuse_at_url(item, _TARS, "compressed tars", instead)
        return []
    path = Path(item).expanduser()
    if path.is_dir():
        return _compressed_in(path)
    if not is_compressed(path):
        return []
    return list(find_shards(path))


def _compressed_in(folder: Path) -> list[Path]:
    """Return the compressed tars of a folder, or its compressed lines. Raises DataError if it has
    files of another format, too."""
    entries = entries_of(folder)
    files = [one for one in entries if one.name.endswith((*_TARS, *_LINES))]
    if not files or (folder / "index.json").is_file():
        return []
    if is_folder_of_tars(folder):
        _log.warning("%s: compressed files beside its tars are not read: %s", folder, files[0].name)
        return []
    kinds = {one.name.endswith(_TARS) for one in files}
    others = [one.name for one in entries if one.suffix in _OTHERS]
    if len(kinds) > 1 or others:
        raise DataError(
            f"{folder} has files of several formats, such as {(others or [files[-1].name])[0]} and "
            f"{files[0].name}: give those of one, as a glob"
        )
    return files


def _plain_name(name: str) -> str:
    """Return the name of a file without the end that says how it is compressed."""
    if name.endswith(".tgz"):
        return f"{name.removesuffix('.tgz')}.tar"
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _pieces(path: Path, source: BinaryIO) -> Iterator[bytes]:
    """Yield what a file of one or more gzip members or zstd frames unpacks to, in pieces of at most
    a fixed size. Raises ShardError, with the offset in the compressed file."""
    head = source.read(4)
    source.seek(0)
    is_skippable = head[:1] in _SKIPPABLE and head[1:] == b"\x2a\x4d\x18"  # as pzstd begins
    if head[:2] == b"\x1f\x8b":
        yield from _gzip_pieces(path, source)
    elif head == b"\x28\xb5\x2f\xfd" or is_skippable:
        yield from _zstd_pieces(path, source)
    else:
        raise BrokenTarError(path, 0, "is neither gzip nor zstd data, although its name says so")


def _gzip_pieces(path: Path, source: BinaryIO) -> Iterator[bytes]:
    rest, inner = b"", zlib.decompressobj(wbits=31)
    while True:
        rest = rest or source.read(_PIECE)
        at = source.tell() - len(rest)
        if not rest:
            raise BrokenTarError(path, at, "cut short within a gzip member; copy it again")
        try:
            piece = inner.decompress(rest, _PIECE)
        except zlib.error as error:
            raise BrokenTarError(path, at, f"damaged: {error}; copy it again") from error
        yield piece
        rest = inner.unused_data if inner.eof else inner.unconsumed_tail
        if inner.eof:
            rest = rest.lstrip(b"\0")  # padding, as gzip itself skips it
            while not rest:
                if not (rest := source.read(_PIECE)):
                    return
                rest = rest.lstrip(b"\0")
            inner = zlib.decompressobj(wbits=31)


def _zstd_pieces(path: Path, source: BinaryIO) -> Iterator[bytes]:
    import zstandard

    reader = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
    rest, inner = b"", None
    while True:
        rest = rest or source.read(_ZSTD_PIECE)
        at = source.tell() - len(rest)
        if not rest:
            if inner is not None:
                raise BrokenTarError(path, at, "cut short within a zstd frame; copy it again")
            return
        inner = inner or reader.decompressobj()
        try:
            piece = inner.decompress(rest)
        except zstandard.ZstdError as error:
            if "too much memory" in str(error):
                raise ShardError(
                    path,
                    at,
                    f"needs a window of more than the {_MOST_WINDOW} bytes of memory that are "
                    "allowed, as `zstd --long` makes it; decompress it first",
                ) from error
            raise BrokenTarError(path, at, f"damaged: {error}; copy it again") from error
        if piece:
            yield piece
        rest = inner.unused_data if inner.eof else b""
        inner = None if inner.eof else inner
