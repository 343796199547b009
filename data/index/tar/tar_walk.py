"""Walking the headers of an uncompressed tar, by reads or from its stream of bytes."""

import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from data.errors import BrokenTarError
from data.index.tar import tar_header
from data.index.tar.tar_header import BLOCK, ExtendedHeaders, TarHeaderError

# (offset, size) -> the bytes there, fewer only where the file ends
Read: TypeAlias = Callable[[int, int], bytes]
# (name, offset of its first header, offset of its data, size, CRC-32 of the header before its data)
Sink: TypeAlias = Callable[[str, int, int, int, int], object]

MOST_EXTENDED = 1 << 20  # bytes of an extended header: names and attributes need a few KB at most

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}

_OTHERS = {
    b"PAR1": "a table, which is read from a file named .parquet",
    b"ARROW1": "a table, which is read from a file named .arrow",
    b"version https://git-lfs": "a pointer of Git LFS: fetch the file itself by `git lfs pull`",
    b"PK\x03\x04": "a zip file: unpack it, and pack it as a tar",
    b"<": "a page of HTML or XML, such as a server sends in place of a file",
    b"{": "JSON; lines of JSON are read from a file named .jsonl",
    b"[": "JSON; lines of JSON are read from a file named .jsonl",
}
"""What else is given as a shard, by how it begins."""

_FILE = ord("0")

_log = logging.getLogger(__name__)


class TarWalk:
    """The walk over a tar, without input of its own: its caller passes in the bytes that it asks
    for.

    `take` expects the bytes [offset, offset + want) of the tar, at increasing offsets, fewer only
    at the end of the file; `finish` must be called when there are no more. `sink` is called with
    each regular file. Raises BrokenTarError for a tar that is broken, truncated or compressed, for
    a sparse member, and for data after the end.
    """

    def __init__(self, shard: Path | str, sink: Sink) -> None:
        self.offset = 0
        self.want = BLOCK
        self._shard = shard
        self._sink = sink
        self._start = 0  # of the headers of the present member
        self._extended: ExtendedHeaders | None = None
        self._kind = 0  # of the extended header whose data is wanted
        self._ended = False  # the end marker was read
        self._hard_links = self._symbolic_links = 0
        self._first_link = ""

    def take(self, block: bytes) -> None:
        """Process the bytes asked for."""
        if self._kind:
            self._take_extended(block)
        elif self._ended or len(block) < BLOCK:
            self._take_rest(block)
        else:
            self._take_header(block)

    def finish(self, size: int) -> None:
        """Note that the tar has ended after `size` bytes."""
        if self.offset > size:
            problem = f"cut short: its member ends at byte {self.offset}, the file at {size}"
            raise self._error(f"{problem}; fetch it again", self._start)
        if self._extended is not None:
            raise self._error("damaged: it ends after an extended header", self._start)
        if size == 0:
            raise self._error("not a tar file: it is empty")
        if not self._ended:
            _log.warning("%s: no end-of-archive mark at %d; it may be cut short", self._shard, size)
        if self._first_link:
            _log.warning(
                "%s: %d hard links and %d symbolic links are left out, the first is %s: a link has "
                "no content of its own; pack with `tar --hard-dereference --dereference` to store "
                "what they refer to",
                self._shard,
                self._hard_links,
                self._symbolic_links,
                self._first_link,
            )

    def _take_header(self, block: bytes) -> None:
        if not block[0] and block == tar_header.NO_BLOCK:
            self._end()
            return
        try:
            tar_header.check(block)
            size = tar_header.size_of(block)
        except TarHeaderError as error:
            raise self._error(self._no_header(block, error)) from None
        if self._extended is None:
            self._start = self.offset
        kind = block[156]
        if kind in tar_header.EXTENDED:
            self._want_extended(kind, size)
            return
        extended, self._extended = self._extended, None
        is_regular = kind == _FILE or tar_header.is_regular(block)
        if (
            extended
            and extended.size is not None
            and (is_regular or kind not in tar_header.NO_DATA)
        ):
            size = extended.size
        data = self.offset + BLOCK
        if is_regular:
            name = _name_of(block, extended)
            self._sink(name, self._start, data, size, zlib.crc32(block))
        elif kind in (tar_header.HARD_LINK, tar_header.SYMBOLIC_LINK):
            size = 0
            self._hard_links += kind == tar_header.HARD_LINK
            self._symbolic_links += kind == tar_header.SYMBOLIC_LINK
            self._first_link = self._first_link or _name_of(block, extended)
        elif kind == tar_header.SPARSE:
            raise self._error("a sparse member; repack without --sparse", self._start)
        elif kind in tar_header.NO_DATA or kind == 0:
            size = 0
        self.offset = data + size + -size % BLOCK

    def _want_extended(self, kind: int, size: int) -> None:
        if size > MOST_EXTENDED:
            raise self._error(
                f"an extended header of {size} bytes; at most {MOST_EXTENDED} are allowed"
            )
        if self._extended is None:
            self._extended = ExtendedHeaders()
        self.offset += BLOCK
        if size:
            self._kind, self.want = kind, size + -size % BLOCK

    def _take_extended(self, block: bytes) -> None:
        if len(block) < self.want:
            raise self._error("cut short in an extended header; fetch it again", self._start)
        assert self._extended is not None
        try:
            if self._kind == tar_header.LONG_NAME:
                self._extended.add(tar_header.long_name(block), None)
            elif self._kind in tar_header.PAX:
                self._extended.add(*tar_header.pax_fields(block))
            elif self._kind == tar_header.PAX_GLOBAL and tar_header.pax_fields(block) != (
                None,
                None,
            ):
                raise TarHeaderError("a global pax header gives all members one name or size")
        except TarHeaderError as error:
            raise self._error(str(error), self._start) from None
        self.offset += self.want
        self._kind, self.want = 0, BLOCK

    def _end(self) -> None:
        if self._extended is not None:
            raise self._error("damaged: it ends after an extended header", self._start)
        self._ended = True
        self.offset += BLOCK

    def _take_rest(self, block: bytes) -> None:
        """Check that only zeros follow the last member: tarfile ends silently at anything else."""
        if block.count(0) != len(block):
            if not self.offset:
                raise self._error(_no_tar(block, "shorter than a header"))
            raise self._error("broken tar header, or data after the end")
        self.offset += len(block)

    def _no_header(self, block: bytes, error: TarHeaderError) -> str:
        if str(error) == "negative size":
            return "broken tar header (negative size)"
        if self.offset:
            return f"broken tar header, or data after the end ({error})"
        return _no_tar(block, str(error))

    def _error(self, problem: str, offset: int | None = None) -> BrokenTarError:
        return BrokenTarError(self._shard, self.offset if offset is None else offset, problem)


def _no_tar(block: bytes, problem: str) -> str:
    """Return what to say of a file that begins with `block`, which is no header for a reason."""
    for magic, name in _COMPRESSED.items():
        if block.startswith(magic):
            known = {"gzip": ".tar.gz", "zstd": ".tar.zst"}.get(name)
            advice = f"; a file named {known} is unpacked into a cache" if known else ""
            return (
                f"compressed with {name}, which does not allow random access; decompress it "
                f"first{advice}"
            )
    for magic, what in _OTHERS.items():
        if block.startswith(magic):
            return f"not a tar file, but looks like {what}"
    return f"not a tar file ({problem}): pack or fetch it again, or leave it out"


def _name_of(block: bytes, extended: ExtendedHeaders | None) -> str:
    if extended is None or extended.name is None:
        return tar_header.name_of(block)
    return extended.name


def walk(read: Read, size: int, walker: TarWalk) -> None:
    """Walk over a tar of `size` bytes, reading little more than its headers."""
    take = walker.take
    while walker.offset < size:
        take(read(walker.offset, walker.want))
    walker.finish(size)


class TarFeed:
    """Walks over a tar that is given in chunks of any size, in order."""

    def __init__(self, walker: TarWalk) -> None:
        self.bytes = 0  # fed so far
        self._walker = walker
        self._rest = b""  # bytes that the walk asks for, not yet complete

    def feed(self, chunk: bytes | memoryview) -> None:
        """Add the next bytes. Raises BrokenTarError."""
        walker, start = self._walker, self.bytes
        self.bytes += len(chunk)
        if self._rest:
            missing = walker.want - len(self._rest)
            self._rest += chunk[:missing]
            if len(self._rest) < walker.want:
                return
            block, self._rest = self._rest, b""
            walker.take(block)
        while (at := walker.offset - start) + walker.want <= len(chunk):
            walker.take(bytes(chunk[at : at + walker.want]))
        if at < len(chunk):
            self._rest = bytes(chunk[at:])

    def finish(self) -> None:
        """Note that there are no more bytes. Raises BrokenTarError if the tar is truncated."""
        if self._rest:
            self._walker.take(self._rest)
        self._walker.finish(self.bytes)
