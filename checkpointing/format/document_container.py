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

from checkpointing.errors import DamagedError
from checkpointing.format.canonical_json import JsonReader, check_version, dump, load
from checkpointing.storage.interface import Buffer

MAGIC = b"HPKDOC01"
VERSION = 1
TENSOR_GROUPS = "tensor-groups"  # the table of an item is in several sections
FEATURES = frozenset({TENSOR_GROUPS})  # optional features that this version can read
PREFIX = len(MAGIC) + 4
HEAD = 1 << 16  # bytes of the first read: enough for nearly every header
MAX_HEADER = 256 << 20  # bytes; a larger header is refused before anything is allocated

ReadRange = Callable[[int, int], Buffer]  # (start, length) -> exactly these bytes of the object


def build(
    kind: str,
    header: Mapping[str, Any],
    sections: Mapping[str, bytes],
    features: Collection[str] = (),
) -> bytes:
    """Returns the bytes of an object of format `kind` with these sections.

    Args:
        features: what a reader must know to understand it, of `FEATURES`.
    """
    places, at = {}, 0
    for name, data in sections.items():
        places[name] = {"offset": at, "length": len(data), "blake3": blake3(data).hexdigest()}
        at += len(data)
    named = sorted(features)
    envelope = {"format": kind, "version": VERSION, "features": named, "sections": places}
    head = dump({**header, **envelope})
    return b"".join([MAGIC, len(head).to_bytes(4, "little"), head, *sections.values()])


class DocumentContainer:
    """An object that is read section by section; each is checked before it is returned."""

    def __init__(
        self,
        read: ReadRange,
        size: int,
        kinds: Collection[str],
        where: str,
        head: bytes | None = None,
    ) -> None:
        """Read and check the header.

        Args:
            read: reads a range of the object.
            size: bytes of the object.
            kinds: formats that it may have.
            where: its name, for messages.
            head: the object up to its first section, if it was read before.

        Raises:
            DamagedError: it is not whole.
            FormatError: it has a version or a feature that is unknown to this version.
        """
        self._read, self._size, self.where = read, size, where
        self.requests, self.bytes_read = 0, 0
        """Ranges that were read of the object so far, and their bytes."""
        self.head = self._read_header() if head is None else head
        """The object up to its first section."""
        self._start = len(self.head)
        body, is_intact = load(self.head[PREFIX:], where)
        self.header = JsonReader(body, where)
        self.kind = self.header.text("format")
        if self.kind not in kinds:
            raise DamagedError(f"{where}: its format is {self.kind!r}")
        check_version(self.header, VERSION, FEATURES, is_intact=is_intact)
        self._sections = self.header.child("sections")
        self._check_size()

    def names(self) -> list[str]:
        """The names of the sections."""
        return list(self.header.object("sections"))

    def has(self, name: str) -> bool:
        """Whether there is a section of this name."""
        return self._sections.has(name)

    def section(self, name: str) -> bytes:
        """Returns one section, checked against its hash."""
        place = self._sections.child(name)
        data = self._range(self._start + place.count("offset"), place.count("length"))
        if blake3(data).hexdigest() != place.text("blake3"):
            raise DamagedError(f"{self.where}: section {name!r} does not match its hash")
        return data

    def _range(self, start: int, length: int) -> bytes:
        data = bytes(self._read(start, length))
        self.requests += 1
        self.bytes_read += len(data)
        return data

    def _read_header(self) -> bytes:
        head = self._range(0, min(HEAD, self._size))
        if head[: len(MAGIC)] != MAGIC or len(head) < PREFIX:
            raise DamagedError(f"{self.where}: it does not begin with the expected bytes")
        end = PREFIX + int.from_bytes(head[len(MAGIC) : PREFIX], "little")
        if end > min(self._size, MAX_HEADER):
            raise DamagedError(f"{self.where}: it is cut off, or states an impossible length")
        if end > len(head):
            head += self._range(len(head), end - len(head))
        return head[:end]

    def _check_size(self) -> None:
        places = [self._sections.child(name) for name in self.names()]
        ends = [place.count("offset") + place.count("length") for place in places]
        if max(ends, default=0) > self._size - self._start:
            raise DamagedError(f"{self.where}: a section is outside of its {self._size} bytes")
        stated = self._start + sum(place.count("length") for place in places)
        if stated != self._size:
            raise DamagedError(f"{self.where}: it has {self._size} bytes instead of {stated}")
