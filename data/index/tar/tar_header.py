"""Parsing of one tar header: its 512 bytes, and the pax and GNU records before it that override it.

Equivalent to the standard library's tarfile, which webdataset uses, in all that a reader of samples
sees. Formats: POSIX.1-2017 (ustar, pax), GNU tar's manual (long names, base-256 numbers).
"""

import zlib
from dataclasses import dataclass
from functools import lru_cache

BLOCK = 512  # bytes of a header; members are padded to a multiple of it
MOST_SIZE = 1 << 62  # bytes; base 256 has room for numbers that no file can have
NO_BLOCK = bytes(BLOCK)
REGULAR = frozenset(b"0\x007")
SPARSE = ord("S")
LONG_NAME, LONG_LINK = ord("L"), ord("K")
PAX, PAX_GLOBAL = frozenset(b"xX"), ord("g")
EXTENDED = PAX | {LONG_NAME, LONG_LINK, PAX_GLOBAL}
# Types that no data follows, whatever size they state: links, devices, folders, pipes.
NO_DATA = frozenset(b"123456")
HARD_LINK, SYMBOLIC_LINK = ord("1"), ord("2")

_NUMBERS: set[bytes] = set()  # fields that are numbers: most headers of a tar have the same ones


class TarHeaderError(ValueError):
    """The bytes are not a usable header; the text says why."""


@dataclass
class ExtendedHeaders:
    """The fields of extended headers that apply to the next member. The first value of a field
    counts."""

    name: str | None = None
    size: int | None = None

    def add(self, name: str | None, size: int | None) -> None:
        self.name = name if self.name is None else self.name
        self.size = size if self.size is None else self.size


def check(block: bytes) -> None:
    """Verify the checksum of the header. Raises TarHeaderError if it is wrong, or a number is
    invalid.

    The low half of Adler-32 is 1 + the sum of the bytes modulo 65521, much faster than sum(); 512
    bytes below 128 add up to less than that.
    """
    total = (zlib.adler32(block) & 0xFFFF) - 1 if block.isascii() else sum(block)
    stated = _stated(block[148:156])
    if stated != total:
        high = sum(1 for byte in block[:148] + block[156:] if byte > 127)
        if stated != total - 256 * high:  # some old tars use the sum of signed bytes
            raise TarHeaderError("bad checksum")
    for fields in (block[100:124], block[136:148], block[329:345]):
        if fields not in _NUMBERS:
            _check_numbers(fields)


def _check_numbers(fields: bytes) -> None:
    """Check mode, uid and gid; the modification time; the device. They are not used here, but
    tarfile takes a header without them for the end of the tar."""
    width = 12 if len(fields) == 12 else 8
    for at in range(0, len(fields), width):
        number(fields[at : at + width])
    if len(_NUMBERS) >= 4096:
        _NUMBERS.clear()
    _NUMBERS.add(fields)


@lru_cache(4096)  # there are few different sums, as names of one length differ in few digits
def _stated(field: bytes) -> int:
    """Return the checksum that a header states. Its own field counts as spaces in the sum."""
    return number(field) + sum(field) - len(field) * ord(" ")


def size_of(block: bytes) -> int:
    """Return the size that a header states, in bytes. Raises TarHeaderError if there is none or it
    is < 0."""
    if block[135] in (0, 32):
        try:
            size = int(block[124:135], 8)
        except ValueError:
            size = number(block[124:136])
    else:
        size = number(block[124:136])
    if size < 0:  # a negative size would send a reader back and forth forever (CVE-2025-8194)
        raise TarHeaderError("negative size")
    if size > MOST_SIZE:
        raise TarHeaderError(f"a size of {size} bytes")
    return size


def name_of(block: bytes) -> str:
    """Return the name that a header states. Bytes that are not UTF-8 become surrogates."""
    name = block[:100].split(b"\0", 1)[0]
    if block[345]:
        name = block[345:500].split(b"\0", 1)[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def is_regular(block: bytes) -> bool:
    """Return whether the header is of a file; an old header shows a folder by its name only."""
    kind = block[156]
    if kind == 0:
        return not block[:100].split(b"\0", 1)[0].endswith(b"/")
    return kind in REGULAR


def number(field: bytes) -> int:
    """Parse a number of a header: octal text, or base 256 after a byte of 0x80 (0xFF: negative)."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (field[0] == 0xFF) * (1 << 8 * (len(field) - 1))
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        raise TarHeaderError(f"{field!r} is not a number") from None


def long_name(content: bytes) -> str:
    """Return the name in the data of a GNU long-name header."""
    return content.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def pax_fields(content: bytes) -> tuple[str | None, int | None]:
    """Return the (name, size) in the records of a pax header, None for each that is missing.

    Raises TarHeaderError for records that cannot be read, and for a sparse member.
    """
    name: str | None = None
    size: int | None = None
    for key, value in _records(content):
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape").rstrip("/")
        elif key == b"size":
            size = _decimal(value)
        elif key.startswith(b"GNU.sparse."):
            raise TarHeaderError("a sparse member; repack without --sparse")
    return name, size


def _records(content: bytes) -> list[tuple[bytes, bytes]]:
    """Records are b"<length> <key>=<value>\\n", where length counts all of the record."""
    records: list[tuple[bytes, bytes]] = []
    at = 0
    while at < len(content) and content[at]:
        space = content.find(b" ", at, at + 20)
        length = _decimal(content[at:space]) if space > 0 else 0
        record = content[at : at + length]
        key, equals, value = record[space + 1 - at : -1].partition(b"=")
        if not equals or len(record) != length or record[-1:] != b"\n":
            raise TarHeaderError("a pax header whose records cannot be read")
        records.append((key, value))
        at += length
    return records


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise TarHeaderError(f"{text[:40]!r} in a pax header is not a number")
    if int(text) > MOST_SIZE:
        raise TarHeaderError(f"{int(text)} in a pax header is not a size")
    return int(text)
