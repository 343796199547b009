"""Checks keys before they become part of a path or a URL."""

from __future__ import annotations

import re

_PART = re.compile(r"[A-Za-z0-9._~-]+")


def check_key(key: str) -> str:
    """Returns `key`.

    Raises:
        ValueError: it is not a valid key, see `Storage`.
    """
    for part in key.split("/"):
        if part in (".", "..") or not _PART.fullmatch(part):
            raise ValueError(
                f"object key {key!r}: parts joined by '/', each of letters, digits, '.', '_', '-' "
                "and '~', none of them '.' or '..'"
            )
    return key


def is_key(key: str) -> bool:
    """Whether `key` is a valid key of an object."""
    return all(map(is_name, key.split("/")))


def check_prefix(prefix: str) -> str:
    """Returns `prefix`.

    Raises:
        ValueError: it is neither "" nor a folder ending in "/".
    """
    if prefix:
        if not prefix.endswith("/"):
            raise ValueError(f"prefix {prefix!r}: it is a folder and must end in '/'")
        check_key(prefix[:-1])
    return prefix


def check_range(start: int, length: int) -> None:
    """Raises:
    ValueError: it is not a range of bytes.
    """
    if start < 0 or length < 0:
        raise ValueError(f"range of {length} bytes from byte {start}: neither may be negative")


def is_name(name: str) -> bool:
    """Whether `name` is valid as one part of a key."""
    return name not in (".", "..") and _PART.fullmatch(name) is not None
