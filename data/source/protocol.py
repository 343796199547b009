"""What every kind of source offers, and how one try of a request fails."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from blake3 import blake3


@dataclass(frozen=True)
class ObjectVersion:
    """One version of an object."""

    bytes: int | None
    """Its length; None where only reading it to the end would tell (`pipe:`)."""

    tag: str | None
    """etag, or time and size of a file: what tells this version from others; None if nothing does.
    """


def short_tag(tag: str | None) -> int:
    """A tag as a number of 64 bits; 0 if there is none."""
    return 0 if tag is None else int.from_bytes(blake3(tag.encode()).digest(8), "little") | 1


class Backend(Protocol):
    """Reads objects of one kind of URL; thread-safe.

    It makes one try and raises PassingError, FinalError or ChangedError; `Sources` tries again and
    raises FetchError.
    """

    def stat(self, url: str) -> ObjectVersion:
        """The object as it is now."""

    def read(self, url: str, start: int, size: int, tag: str | None) -> bytes:
        """Exactly the bytes [start, start + size) of the version `tag` (None: of any)."""

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        """All bytes from `start` to the end, in pieces. Never ends early without an error."""


class ObjectSource(Backend, Protocol):
    """Reads objects of any URL, as `Sources` does."""

    def get(self, url: str) -> bytes:
        """All of a small object, by one request."""


class TransientSourceError(Exception):
    """A try failed in a way that may pass."""


class PermanentSourceError(Exception):
    """To try again would not help; the text says what to do."""


class TagMismatchError(Exception):
    """The object has another tag than the one asked for."""


def check_tag(wanted: str | None, found: str | None) -> None:
    """Raises ChangedError if both are known and differ."""
    if wanted is not None and found is not None and wanted != found:
        raise TagMismatchError(f"the object was replaced: its tag was {wanted} and is {found}")
