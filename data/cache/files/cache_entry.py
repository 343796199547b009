"""How shards are named and marked in the cache.

Of each shard version there are files of one stem, `<url key>-<version>-<bytes>-<name>`:

    .part     the growing download; its size is how much of it may be read
    .shard    the whole, verified shard
    .json     what is known of it: see `record`
    .lock     locked by who downloads
    .failed   why the last download failed, for those who waited for it
    .damaged  when it was last found damaged

The permission bits of a .part or .shard say how it stands with it. They belong to the file and not
to its name, so they reach readers that hold it open after it was renamed or removed.
"""

import re
from dataclasses import dataclass

from blake3 import blake3

from data.source.address import Address
from data.source.protocol import short_tag

GROWING = 0o600
WHOLE = 0o400  # verified, never changes again
DROPPED = 0o200  # removed before it was whole; what it holds is right
DAMAGED = 0o000  # what it holds is wrong, or of a version of the object that is gone

KINDS = ("part", "shard", "json", "lock", "failed", "damaged")

_STEM = re.compile(r"([0-9a-f]{24})-([0-9a-f]{12})-(\d+)-([A-Za-z0-9._-]{1,60})")


@dataclass(frozen=True)
class ShardRef:
    """A shard as the manifest of a dataset knows it."""

    url: str
    bytes: int | None = None
    hash: str | None = None
    """blake3 of the whole file, in hex."""
    tag: int | None = None
    """Of the version that was indexed, as a number: see `short_tag`; None if not known."""


@dataclass(frozen=True)
class CacheEntry:
    """One version of one shard in a cache."""

    key: str
    """Of the URL without credentials: 24 hex digits."""

    version: str
    """Of the hash, or else of the tag: 12 hex digits."""

    bytes: int
    name: str

    @property
    def stem(self) -> str:
        return f"{self.key}-{self.version}-{self.bytes}-{self.name}"

    @classmethod
    def parse(cls, file: str) -> tuple["CacheEntry", str] | None:
        """The entry and the kind of a file of this name; None for any other file."""
        stem, _, kind = file.rpartition(".")
        match = _STEM.fullmatch(stem)
        if match is None or kind not in KINDS:
            return None
        key, version, size, name = match.groups()
        return cls(key, version, int(size), name), kind

    @classmethod
    def of(cls, ref: ShardRef, size: int, tag: str | None) -> "CacheEntry":
        """The entry of a shard of `size` bytes; `tag` counts where no hash is known."""
        return cls._of(ref, size, short_tag(tag))

    @classmethod
    def indexed(cls, ref: ShardRef) -> "CacheEntry | None":
        """The entry of the version that the manifest speaks of; None if it does not tell which."""
        if ref.bytes is None or (ref.hash is None and not ref.tag):
            return None
        return cls._of(ref, ref.bytes, ref.tag or 0)

    @classmethod
    def _of(cls, ref: ShardRef, size: int, tag: int) -> "CacheEntry":
        version = f"hash {ref.hash}" if ref.hash is not None else f"tag {tag}"
        address = Address.parse(ref.url)
        return cls(url_key(ref.url), digest(version)[:12], size, address.name)


def url_key(url: str) -> str:
    """24 hex digits for the object at `url`, whatever the credentials in it."""
    return digest(Address.parse(url).identity)[:24]


def digest(text: str) -> str:
    return blake3(text.encode(errors="surrogateescape")).hexdigest()
