"""What a store needs from the place where its objects lie: eight operations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True)
class ObjectInfo:
    """One object, as a listing shows it."""

    key: str
    size: int  # bytes
    modified: float  # Unix time in seconds, by the clock of the storage and not of this machine


class Storage(Protocol):
    """Objects by key, in one place. Thread-safe; every method blocks, and may be called from many
    threads at once.

    A key is relative, of parts joined by "/", each of letters, digits, ".", "_", "-" and "~", none
    of them "." or "..". An object is there whole or not at all, and is durable when the method
    that made it returns.

    What passes is tried again with back-off inside; what is raised is final:

    Raises (every method):
        StoreFullError: no space or over quota.
        StoreAccessError: not allowed; credentials missing, wrong or expired; read-only.
        StoreError: out of reach, or broken in another way; the text says which object and why.
    """

    @property
    def url(self) -> str:
        """Where it is, as a person would write it. Never holds a secret."""

    def put(self, key: str, parts: Sequence[Buffer]) -> None:
        """Make a new object of `parts`, end to end. The caller chose a key that nobody else uses;
        a second put of the same content after an error is harmless."""

    def create(self, key: str, data: bytes) -> bool:
        """Make a new object if there is none under `key`: of any number of callers anywhere, one
        makes it.

        Returns:
            True if the object holds `data` now, made by this call or by another one with the same
            content (a lost reply makes one's own success look like another's). False if there was
            an object with other content, which stays.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Make the object or replace it, atomically; readers see the old or the new one."""

    def get(self, key: str) -> bytes:
        """The whole object.

        Raises:
            FileNotFoundError: there is none.
        """

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """`length` bytes from byte `start`.

        Raises:
            FileNotFoundError: there is no such object.
            DamagedError: it ends before that.
        """

    def list(self, prefix: str) -> list[ObjectInfo]:
        """All objects whose keys begin with `prefix` (a folder ending in "/", or "" for all),
        ordered by key. Complete: an object that was there before the call is in it."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, durably; those that are not there are no error."""

    def close(self) -> None:
        """Release connections and threads."""
