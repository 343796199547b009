"""Finds the uncompressed records of a zip file as torch.save writes it, and updates their checksums
after their content has changed."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from checkpointing.errors import DamagedError
from checkpointing.interop.atomic_files import InputFile

_LOCAL = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_CENTRAL = struct.Struct("<4s24xHHH")  # signature, lengths of the name, extra field and comment
_CENTRAL_CRC = 16  # offset of the checksum in a directory entry
_LOCAL_CRC = 14
_DESCRIPTOR = b"PK\x07\x08"
_HAS_DESCRIPTOR = 0x08
_PIECE = 1 << 20  # bytes read at a time


@dataclass(frozen=True)
class ZipRecord:
    """One record of a zip file."""

    name: str
    start: int  # first byte of its content in the file
    size: int  # bytes
    header: int  # first byte of its own header
    entry: int  # first byte of its entry in the directory
    has_descriptor: bool  # whether the checksum follows the content


def records(path: Path) -> list[ZipRecord]:
    """Returns the records of tensors' bytes ("<folder>/data/<number>"), by number."""
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        entry = archive.start_dir
        for info in archive.infolist():
            _, _, kind, number = ("", "", *info.filename.rsplit("/", 2))[-4:]
            if kind == "data" and number.isdecimal():
                start = info.header_offset + _header_size(file, info.header_offset)
                flag = bool(info.flag_bits & _HAS_DESCRIPTOR)
                record = ZipRecord(
                    info.filename, start, info.file_size, info.header_offset, entry, flag
                )
                found[int(number)] = record
            entry += _entry_size(file, entry)
    return [found[number] for number in sorted(found)]


def rewrite_checksums(path: Path, changed: Sequence[ZipRecord]) -> None:
    """Update the checksums of records whose content was overwritten."""
    with path.open("r+b") as file:
        for record in changed:
            crc = struct.pack("<I", _crc(file, record))
            _overwrite(file, record.entry + _CENTRAL_CRC, crc)
            if record.has_descriptor:
                _overwrite(file, record.start + record.size, _DESCRIPTOR + crc)
            else:
                _overwrite(file, record.header + _LOCAL_CRC, crc)


def content_start(file: InputFile, header: int) -> int:
    """Returns the offset of the content of the record whose own header is at `header`.

    Raises:
        DamagedError: there is no such header.
    """
    signature, name, extra = _LOCAL.unpack(file.read(header, _LOCAL.size))
    if signature != b"PK\x03\x04":
        raise DamagedError(f"{file.path}: there is no record at byte {header}: it is damaged")
    return int(header + _LOCAL.size + name + extra)


def _crc(file: BinaryIO, record: ZipRecord) -> int:
    file.seek(record.start)
    crc, rest = 0, record.size
    while rest:
        piece = file.read(min(rest, _PIECE))
        crc, rest = zlib.crc32(piece, crc), rest - len(piece)
    return crc


def _header_size(file: BinaryIO, at: int) -> int:
    file.seek(at)
    _, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    return int(_LOCAL.size + name + extra)


def _entry_size(file: BinaryIO, at: int) -> int:
    """Returns the size of a directory entry, whose fixed part has 46 bytes."""
    file.seek(at)
    _, name, extra, comment = _CENTRAL.unpack(file.read(_CENTRAL.size))
    return int(46 + name + extra + comment)


def _overwrite(file: BinaryIO, at: int, data: bytes) -> None:
    file.seek(at)
    file.write(data)
