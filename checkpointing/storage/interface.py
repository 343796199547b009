"""The interface that a store needs from its storage, eight operations on objects, and two optional
interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class ObjectInfo:
    """One object of a listing."""

    key: str
    size: int  # bytes
    modified: float  # Unix time in seconds, by the storage's clock and not this machine's


class Storage(Protocol):
    """Access to the objects below one URL, by key. Thread-safe; every method blocks, and may be
    called from many threads at once.

    A key is relative, with parts joined by "/", each of letters, digits, ".", "_", "-" and "~", and
    none of them "." or "..". An object exists whole or not at all, and is durable when the method
    that created it returns.

    Transient errors are retried internally with back-off; the errors raised are final:

    Raises (every method):
        StoreFullError: there is no space, or the quota is exceeded.
        StoreAccessError: access is denied: credentials are missing, wrong or expired, or the
            storage is read-only.
        StoreError: the storage is unreachable, or fails in another way; the message says for which
            object and why.
    """

    @property
    def url(self) -> str:
        """The URL, as a user would write it. Never contains a secret."""

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Create a new object of `parts`, end to end. The caller must choose a key that no other
        caller uses; a second put of the same content after an error is harmless. The parts may be
        `LazyParts`."""

    def create(self, key: str, data: bytes) -> bool:
        """Create an object if there is none under `key`: of any number of callers on any machine,
        only one succeeds.

        Returns:
            True if the object now holds `data`, created by this call or by another one with the
            same content (after a lost reply, the caller's own success looks like another's). False
            if there was an object with other content, which is kept.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Create or replace the object, atomically; readers see either the old or the new one."""

    def get(self, key: str) -> bytes:
        """Returns the whole object.

        Raises:
            FileNotFoundError: there is no such object.
        """

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Returns `length` bytes from byte `start`.

        Raises:
            FileNotFoundError: there is no such object.
            DamagedError: it ends before that.
        """

    def list(self, prefix: str) -> list[ObjectInfo]:
        """Returns all objects whose keys begin with `prefix` (a folder ending in "/", or "" for
        all), ordered by key. The list contains every object that existed before the call."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, durably; a missing object is no error."""

    def close(self) -> None:
        """Release connections and threads."""


@runtime_checkable
class SupportsReadInto(Protocol):
    """A storage that can read into given memory; checked by `isinstance(storage,
    SupportsReadInto)`. A read here has little overhead, so small reads that stay in the processor's
    cache are the fastest."""

    def reading_in_order(self) -> AbstractContextManager[None]:
        """Within the block, what this thread reads is expected to be in order, one object after the
        other, so that the storage may keep an object open and read ahead. Not reentrant."""

    def read_into(self, key: str, start: int, into: memoryview) -> None:
        """Fill `into`, writable bytes, from byte `start` of an object. Raises as `get_range`, and
        then the content of `into` is undefined."""


@runtime_checkable
class SupportsTemporaryRemoval(Protocol):
    """A storage in which a writer that dies leaves temporary objects, and that can remove them, as
    a sweep does; checked by `isinstance(storage, SupportsTemporaryRemoval)`."""

    def sweep_temporaries(self, older_than_s: float) -> int:
        """Remove temporary objects of crashed writers. Returns how many there were.

        Args:
            older_than_s: remove only objects that were last written so many seconds ago, by the
                storage's clock. A slower writer loses its file and raises.

        Raises:
            StoreError: see `Storage`.
        """
