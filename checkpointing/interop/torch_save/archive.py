"""The records of a torch.save file, which is an uncompressed zip archive, as ranges of the file."""

from __future__ import annotations

import sys
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from checkpointing.errors import DamagedError, FormatError
from checkpointing.interop.atomic_files import InputFile
from checkpointing.interop.torch_save.zip_records import content_start

# pickled magic number of files before torch 1.6
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_MOST_PICKLE = 1 << 30  # bytes of data.pkl
_PIECE = 1 << 20  # bytes read at a time


@dataclass(frozen=True)
class RecordRange:
    """The range of a record's content."""

    start: int
    size: int
    checksum: int  # CRC-32; 0: torch was configured to write none


class TorchArchive:
    """An open file, of which only the directory has been read."""

    def __init__(self, file: InputFile, places: dict[str, RecordRange]) -> None:
        self.file, self._places = file, places

    def place(self, name: str) -> RecordRange:
        """Raises:
        DamagedError: there is no such record.
        """
        if name not in self._places:
            raise DamagedError(f"{self.file.path}: it has no record {name!r} and is incomplete")
        return self._places[name]

    def pickle(self) -> bytes:
        """Returns the pickle of everything but the tensors' bytes.

        Raises:
            DamagedError: it is missing or damaged.
            FormatError: it is too long, or has another byte order than this machine.
        """
        if "byteorder" in self._places and self._read("byteorder", 16) != sys.byteorder.encode():
            raise FormatError(
                f"{self.file.path}: it was saved on a machine with another byte order; load and "
                "save it again on a machine with this byte order"
            )
        return self._read("data.pkl", _MOST_PICKLE)

    def check(self, name: str) -> None:
        """Read a record and verify its checksum.

        Raises:
            DamagedError: the checksum does not match.
        """
        place, found = self.place(name), 0
        for at in range(place.start, place.start + place.size, _PIECE):
            size = min(_PIECE, place.start + place.size - at)
            found = zlib.crc32(self.file.read(at, size), found)
        if place.checksum not in (0, found):
            raise DamagedError(
                f"{self.file.path}: the checksum of {name!r} does not match: the file is damaged; "
                "copy it again"
            )

    def _read(self, name: str, most: int) -> bytes:
        place = self.place(name)
        if place.size > most:
            raise FormatError(f"{self.file.path}: {name!r} has {place.size} bytes, of {most} taken")
        self.check(name)
        return bytes(self.file.read(place.start, place.size))


@contextmanager
def open_archive(path: Path) -> Iterator[TorchArchive]:
    """Open the file for the duration of the block.

    Raises:
        FormatError: it is not a file of torch.save, or it is compressed or from before torch 1.6.
        DamagedError: it is damaged.
        OSError: reading failed.
    """
    with InputFile(path) as file:
        head = bytes(file.read(0, min(file.size, 512)))
        if head[:2] != b"PK":
            raise _other(path, head)
        try:
            with zipfile.ZipFile(path) as archive:
                entries = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError) as error:
            raise DamagedError(f"{path}: it is cut off, or not a zip file ({error})") from error
        yield TorchArchive(file, _places(file, entries))


def _other(path: Path, head: bytes) -> FormatError:
    if head.startswith(_LEGACY) or head[257:262] == b"ustar":
        return FormatError(
            f"{path}: it was written by torch.save before 1.6, or with "
            "_use_new_zipfile_serialization=False; load it with torch.load(weights_only=True) and "
            "save it again"
        )
    return FormatError(f"{path}: it is not a file of torch.save: it does not begin like a zip file")


def _places(file: InputFile, entries: list[zipfile.ZipInfo]) -> dict[str, RecordRange]:
    """Returns the records by name, without the folder that all names begin with."""
    found: dict[str, RecordRange] = {}
    for entry in entries:
        _, _, name = entry.filename.partition("/")
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
            raise FormatError(
                f"{file.path}: {entry.filename!r} is compressed or encrypted, which torch.save "
                "does not do; unpack it, and zip it again with `zip -0`, or save it again"
            )
        if entry.header_offset < 0:
            raise DamagedError(f"{file.path}: {entry.filename!r} begins before the file")
        start = content_start(file, entry.header_offset)
        if entry.file_size != entry.compress_size or start + entry.file_size > file.size:
            raise DamagedError(f"{file.path}: {entry.filename!r} does not end inside of the file")
        if name in found:
            raise DamagedError(f"{file.path}: has {entry.filename!r} twice")
        found[name] = RecordRange(start, entry.file_size, entry.CRC)
    if "data.pkl" not in found:
        raise FormatError(
            f"{file.path}: it is a zip file, but not one of torch.save: it has no data.pkl"
        )
    return found
