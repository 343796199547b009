"""The optional interface of storages that can read into given memory."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class SupportsReadInto(Protocol):
    """A storage that can read into given memory; checked by `isinstance(storage,
    SupportsReadInto)`. A read here has little overhead, so small reads that stay in the processor's
    cache are the fastest."""

    def read_into(self, key: str, start: int, into: memoryview) -> None:
        """Fill `into`, writable bytes, from byte `start` of an object. Raises as `get_range`, and
        then the content of `into` is undefined."""
