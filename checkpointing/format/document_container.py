"""A container with a JSON header and named sections in one object, which can be read separately.

    8 bytes   magic "HPKDOC01"
    u32       length of the header
    header    canonical JSON with its own hash (checkpointing/format/canonical_json.py); its
    "sections" give
              offset (from the end of the header), length and BLAKE3 of each
    ...       the sections, end to end

Manifests and part records are such objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from blake3 import blake3

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.canonical_json import JsonReader, dump, load
from checkpointing.storage.interface import Buffer

MAGIC = b"HPKDOC01"
VERSION = 1
FEATURES: frozenset[str] = frozenset()  # optional features that this version can read: none yet
PREFIX = len(MAGIC) + 4
HEAD = 1 << 16  # bytes of the first read: enough for nearly every header
MAX_HEADER = 256 << 20  # bytes; a larger header is refused before anything is allocated

ReadRange = Callable[[int, int], Buffer]  # (start, length) -> exactly these bytes of the object


def build(kind: str, header: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """Returns the bytes of an object of format `kind` with these sections."""
    places, at = {}, 0
    for name, data in sections.items():
        places[name] = {"offset": at, "length": len(data), "blake3": blake3(data).hexdigest()}
        at += len(data)
    envelope = {"format": kind, "version": VERSION, "features": [], "sections": places}
    head = dump({**header, **envelope})
    return b"".join([MAGIC, len(head).to_bytes(4, "little"), head, *sections.values()])


class DocumentContainer:
    """An object that is read section by section; each is checked before it is returned."""

    def __init__(self, read: ReadRange, size: int, kinds: Collection[str], where: str) -> None:
        """Read and check the header.

        Args:
            read: reads a range of the object.
            size: bytes of the object.
            kinds: formats that it may have.
            where: its name, for messages.

        Raises:
            DamagedError: it is not whole.
            FormatError: it has a version or a feature that is unknown to this version.
        """
        self._read, self._size, self.where = read, size, where
        head, self._start = self._read_header()
        body, is_intact = load(head, where)
        self.header = JsonReader(body, where)
        self.kind = self.header.text("format")
        if self.kind not in kinds:
            raise DamagedError(f"{where}: its format is {self.kind!r}")
        _check_version(self.header, where, is_intact)
        self._sections = self.header.child("sections")
        self._check_size()

    def names(self) -> list[str]:
        """The names of the sections."""
        return list(self.header.object("sections"))

    def section(self, name: str) -> bytes:
        """Returns one section, checked against its hash."""
        place = self._sections.child(name)
        data = bytes(self._read(self._start + place.count("offset"), place.count("length")))
        if blake3(data).hexdigest() != place.text("blake3"):
            raise DamagedError(f"{self.where}: section {name!r} does not match its hash")
        return data

    def _read_header(self) -> tuple[bytes, int]:
        head = bytes(self._read(0, min(HEAD, self._size)))
        if head[: len(MAGIC)] != MAGIC or len(head) < PREFIX:
            raise DamagedError(f"{self.where}: it does not begin with the expected bytes")
        end = PREFIX + int.from_bytes(head[len(MAGIC) : PREFIX], "little")
        if end > min(self._size, MAX_HEADER):
            raise DamagedError(f"{self.where}: it is cut off, or states an impossible length")
        if end > len(head):
            head += bytes(self._read(len(head), end - len(head)))
        return head[PREFIX:end], end

    def _check_size(self) -> None:
        places = [self._sections.child(name) for name in self.names()]
        ends = [place.count("offset") + place.count("length") for place in places]
        if max(ends, default=0) > self._size - self._start:
            raise DamagedError(f"{self.where}: a section is outside of its {self._size} bytes")
        stated = self._start + sum(place.count("length") for place in places)
        if stated != self._size:
            raise DamagedError(f"{self.where}: it has {self._size} bytes instead of {stated}")


def _check_version(header: JsonReader, where: str, is_intact: bool) -> None:
    # checked before the hash, which another version may compute in another way
    if header.count("version") != VERSION:
        raise FormatError(
            f"{where}: format version {header.count('version')} is unknown here (this is version "
            f"{VERSION}): use the version of hpckit that wrote it, or a newer one"
        )
    if not is_intact:
        raise DamagedError(f"{where}: its hash does not match its content")
    if unknown := sorted(set(header.texts("features")) - FEATURES):
        raise FormatError(f"{where}: it needs features that are unknown here: {', '.join(unknown)}")
