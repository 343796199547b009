"""The interface of every kind of source, and the errors of one attempt of a request."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from blake3 import blake3


@dataclass(frozen=True)
class ObjectVersion:
    """One version of an object."""

    bytes: int | None
    """The length of the object; None if it is only known after reading to the end (`pipe:`)."""

    tag: str | None
    """The etag, or time and size of a file, which tells this version from others; None if there is
    none."""


def short_tag(tag: str | None) -> int:
    """Return a tag as a number of 64 bits; 0 if there is none."""
    return 0 if tag is None else int.from_bytes(blake3(tag.encode()).digest(8), "little") | 1


def is_strong(tag: str) -> bool:
    """Return whether two answers with this tag have the same bytes (RFC 9110, 8.8.1): it is an etag
    that the server does not call weak, and not made of the second of the last change."""
    return tag.startswith('"')


class Backend(Protocol):
    """Reads objects of one kind of URL; thread-safe.

    It makes one attempt and raises TransientSourceError, PermanentSourceError or TagMismatchError;
    `Sources` retries and raises FetchError.
    """

    def stat(self, url: str) -> ObjectVersion:
        """Return the current version of the object."""

    def read(self, url: str, start: int, size: int, tag: "str | FirstTag | None") -> bytes:
        """Read exactly the bytes [start, start + size) of the version `tag` (None: of any)."""

    def stream(self, url: str, start: int, tag: str | None) -> Iterator[bytes]:
        """Yield all bytes from `start` to the end, in pieces. Never ends early without an error."""


@runtime_checkable
class RangeBackend(Backend, Protocol):
    """A `Backend` of which several ranges of one object may be streamed at a time."""

    def stream_range(self, url: str, start: int, end: int, tag: str) -> Iterator[bytes]:
        """Yield the bytes [start, end) as `stream`. Raises NoRangesError if the server sends whole
        objects only."""


class ObjectSource(Backend, Protocol):
    """Reads objects of any URL, as `Sources` does."""

    def get(self, url: str) -> bytes:
        """Read a small object by one request."""


NOT_FOUND = "404 Not Found"
"""How the text of an error begins if there is no such object."""


class NoRangesError(Exception):
    """The server can only send whole objects."""


class TransientSourceError(Exception):
    """An attempt failed in a way that may pass."""


class PermanentSourceError(Exception):
    """A retry would not help; the text says what to do."""


class RefusedError(PermanentSourceError):
    """The server refuses the credentials or the signature of a request.

    `is_expired`: whether it says that they were right once.
    """

    def __init__(self, text: str, *, is_expired: bool = False) -> None:
        super().__init__(text)
        self.is_expired = is_expired


class TagMismatchError(Exception):
    """The object has another tag than the one requested."""


class FirstTag:
    """The tag of the first answer about an object, which later ones are compared with where no
    index or download says which version is read. Thread-safe."""

    def __init__(self) -> None:
        self._kept: dict[None, str] = {}

    def of(self, found: str | None) -> str | None:
        """Return the tag of the first answer, which is this one if there was none before."""
        return found if found is None else self._kept.setdefault(None, found)


def check_tag(wanted: str | FirstTag | None, found: str | None) -> None:
    """Raise TagMismatchError if both tags are known and differ."""
    if isinstance(wanted, FirstTag):
        wanted = wanted.of(found)
    if wanted is not None and found is not None and wanted != found:
        raise TagMismatchError(f"the object was replaced: its tag was {wanted} and is {found}")
