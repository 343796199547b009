"""Storages that read into memory they are given."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsReadInto(Protocol):
    """What a reader asks a storage for: `isinstance(storage, ReadsInto)`. A read here costs little
    besides its bytes, so small ones that stay in the processor's cache are the fastest."""

    def read_into(self, key: str, start: int, into: memoryview) -> None:
        """Fill `into`, writable bytes, from byte `start` of an object; raises as `get_range`, and
        then there may be anything in it."""
