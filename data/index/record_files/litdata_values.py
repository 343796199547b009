"""Lists and dicts of LitData, a leaf of an item: a tag of one byte and then the values, of which
those of one type are stored without tags; or else JSON, as earlier versions write them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from data.index.record_files.record_file import take

_MOST_TAG = 0x20  # what begins with another byte is JSON


def nested_value(content: bytes) -> Any:
    """Return the list, dict or value that a leaf holds. Raises ValueError for other bytes."""
    if not content or content[0] > _MOST_TAG:
        return json.loads(content)
    reader = _Reader(content)
    try:
        found = reader.value()
    except RecursionError as error:
        raise ValueError(f"its nested values cannot be read: {error}") from error
    if reader.at != len(content):
        raise ValueError(f"its nested values end at byte {reader.at} of {len(content)}")
    return found


class _Reader:
    """Reads values one after the other. Its methods raise ValueError, RecursionError."""

    def __init__(self, content: bytes) -> None:
        self.at = 0
        self._content = content

    def take(self, size: int) -> bytes:
        found = take(self._content, self.at, size)
        self.at += size
        return found

    def count(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def numbers(self, dtype: str, count: int) -> list[Any]:
        found: list[Any] = np.frombuffer(
            self.take(count * np.dtype(dtype).itemsize), dtype
        ).tolist()
        return found

    def value(self) -> Any:
        return self._tagged(_VALUES, "nested values")

    def record_value(self) -> Any:
        return self._tagged(_RECORD_VALUES, "a value of a record")

    def _tagged(self, by_tag: Mapping[int, Callable[["_Reader"], Any]], what: str) -> Any:
        tag = self.take(1)[0]
        read = by_tag.get(tag)
        if read is None:
            raise ValueError(f"{tag} is not a tag of {what}")
        return read(self)

    def text(self) -> str:
        return self.take(self.count()).decode()

    def records(self) -> list[dict[str, Any]]:
        count, names = self.count(), self.count()
        keys = [self.text() for _ in range(names)]
        if count > len(self._content):  # each has a byte at least
            raise ValueError(f"{count} records in {len(self._content)} bytes")
        return [{key: self.record_value() for key in keys} for _ in range(count)]


def _integer(reader: _Reader) -> Any:
    return reader.numbers("<i8", 1)[0]


def _real(reader: _Reader) -> Any:
    return reader.numbers("<f8", 1)[0]


def _flag(reader: _Reader) -> bool:
    return reader.take(1) != b"\0"


def _none(reader: _Reader) -> None:
    return None


_VALUES: dict[int, Callable[[_Reader], Any]] = {
    0: lambda reader: json.loads(reader.take(reader.count())),
    1: lambda reader: [reader.text() for _ in range(reader.count())],
    2: lambda reader: reader.numbers("<i8", reader.count()),
    3: lambda reader: reader.numbers("<f8", reader.count()),
    4: lambda reader: [byte != 0 for byte in reader.take(reader.count())],
    5: lambda reader: {reader.text(): reader.value() for _ in range(reader.count())},
    6: _Reader.records,
    7: _Reader.text,
    8: _integer,
    9: _real,
    10: _flag,
    11: _none,
}
_RECORD_VALUES: dict[int, Callable[[_Reader], Any]] = {
    0x10: _none,
    0x11: _Reader.text,
    0x12: _integer,
    0x13: _real,
    0x14: _flag,
}
