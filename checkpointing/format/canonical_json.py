"""Writes canonical JSON that contains its own hash, and reads JSON with strict type checks."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from blake3 import blake3

from checkpointing.errors import DamagedError, FormatError

_HASH = "blake3"  # the field with the hash of all other fields
# upper bound of counts, so that sums of them can be printed and no search is endless
_MOST = 1 << 63


def dump(body: dict[str, Any]) -> bytes:
    """Returns `body` as canonical JSON, with its hash added as field "blake3"."""
    return _canonical({**body, _HASH: blake3(_canonical(body)).hexdigest()})


def load(data: bytes, where: str = "it") -> tuple[dict[str, Any], bool]:
    """Returns the object in `data`, and whether its hash matches. `where` names its origin in
    messages.

    Raises:
        DamagedError: `data` is not a JSON object.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{where}: not JSON ({error})") from error
    if not isinstance(body, dict):
        raise DamagedError(f"{where}: not a JSON object")
    stated = body.pop(_HASH, None)
    try:
        return body, stated == blake3(_canonical(body)).hexdigest()
    except ValueError:  # NaN and Infinity, which Python's parser accepts
        return body, False


def _canonical(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


class JsonReader:
    """Typed access to a parsed JSON object; every mismatch is a DamagedError that names the field.

    Types are exact (true is not a number), and integers are neither negative nor above int64.
    """

    def __init__(self, body: object, where: str) -> None:
        self.where = where
        if not isinstance(body, dict):
            raise DamagedError(f"{where}: not an object")
        self._body: dict[str, Any] = body

    def has(self, key: str) -> bool:
        """Whether there is such a field that is not null."""
        return self._body.get(key) is not None

    def child(self, key: str) -> JsonReader:
        return JsonReader(self._get(key, dict), f"{self.where}.{key}")

    def children(self, key: str) -> list[JsonReader]:
        items = self._get(key, list)
        return [JsonReader(item, f"{self.where}.{key}[{i}]") for i, item in enumerate(items)]

    def object(self, key: str) -> dict[str, Any]:
        value: dict[str, Any] = self._get(key, dict)
        return value

    def text(self, key: str) -> str:
        value: str = self._get(key, str)
        return value

    def flag(self, key: str) -> bool:
        value: bool = self._get(key, bool)
        return value

    def count(self, key: str) -> int:
        value: int = self._get(key, int)
        if not 0 <= value < _MOST:
            raise self._mismatch(key)
        return value

    def number(self, key: str) -> float:
        try:
            return float(self._get(key, float, int))
        except OverflowError:
            raise self._mismatch(key) from None

    def counts(self, key: str) -> tuple[int, ...]:
        items = self._get(key, list)
        if not all(type(i) is int and 0 <= i < _MOST for i in items):
            raise self._mismatch(key)
        return tuple(items)

    def texts(self, key: str) -> list[str]:
        items: list[str] = self._get(key, list)
        if not all(type(i) is str for i in items):
            raise self._mismatch(key)
        return items

    def _get(self, key: str, *kinds: type) -> Any:
        if type(self._body.get(key)) not in kinds:
            raise self._mismatch(key)
        return self._body[key]

    def _mismatch(self, key: str) -> DamagedError:
        return DamagedError(f"{self.where}: field {key!r} is missing or not valid")


def check_version(
    read: JsonReader, version: int, features: Collection[str], *, is_intact: bool
) -> None:
    """Checks the fields "version" and "features" that an object begins with, and its hash.

    Args:
        version, features: those that are known here.
        is_intact: whether its hash matches, as `load` returns it.

    Raises:
        FormatError: another version, or an unknown feature. DamagedError: the hash is wrong.
    """
    # checked before the hash, which another version may compute in another way
    if read.count("version") != version:
        raise FormatError(
            f"{read.where}: format version {read.count('version')} is unknown here (this is "
            f"version {version}): use the version of hpckit that wrote it, or a newer one"
        )
    if not is_intact:
        raise DamagedError(f"{read.where}: its hash does not match its content")
    if unknown := sorted(set(read.texts("features")) - set(features)):
        raise FormatError(
            f"{read.where}: it needs features that are unknown here: {', '.join(unknown)}"
        )
