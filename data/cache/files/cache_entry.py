"""Names and permission marks of the files in a cache folder.

The files of a shard version share one stem, `<url key>-<version>-<bytes>-<name>`:

    .part     the growing download; its size is how much of it may be read
    .shard    the whole, verified shard
    .json     the record of the shard: see `shard_record`
    .lock     locked by the process that downloads
    .failed   why the last download failed, for the processes that waited for it
    .damaged  when the shard was last found damaged

The permission bits of a .part or .shard are its state. They belong to the file and not to its name,
so readers that hold it open see them after it was renamed or removed.
"""

import re
from dataclasses import dataclass

from blake3 import blake3

from data.source.address import Address
from data.source.protocol import short_tag

GROWING = 0o600
WHOLE = 0o400  # verified, never changes again
DROPPED = 0o200  # removed before it was whole; the bytes in it are right
DAMAGED = 0o000  # its bytes are wrong, or of an earlier version of the object

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
    """The tag of the version that was indexed, as a number (see `short_tag`); None if not known."""


@dataclass(frozen=True)
class CacheEntry:
    """One version of one shard in a cache."""

    key: str
    """The hash of the URL without credentials: 24 hex digits."""

    version: str
    """The hash of the content hash, or else of the tag: 12 hex digits."""

    bytes: int
    name: str

    @property
    def stem(self) -> str:
        return f"{self.key}-{self.version}-{self.bytes}-{self.name}"

    @classmethod
    def parse(cls, file: str) -> tuple["CacheEntry", str] | None:
        """Return the entry and the kind of a file of this name; None for any other file."""
        stem, _, kind = file.rpartition(".")
        match = _STEM.fullmatch(stem)
        if match is None or kind not in KINDS:
            return None
        key, version, size, name = match.groups()
        return cls(key, version, int(size), name), kind

    @classmethod
    def of(cls, ref: ShardRef, size: int, tag: str | None) -> "CacheEntry":
        """Return the entry of a shard of `size` bytes; `tag` is used where no hash is known."""
        return cls._of(ref, size, short_tag(tag))

    @classmethod
    def indexed(cls, ref: ShardRef) -> "CacheEntry | None":
        """Return the entry of the version that the manifest describes; None if it gives neither
        hash nor tag."""
        if ref.bytes is None or (ref.hash is None and not ref.tag):
            return None
        return cls._of(ref, ref.bytes, ref.tag or 0)

    @classmethod
    def _of(cls, ref: ShardRef, size: int, tag: int) -> "CacheEntry":
        version = f"hash {ref.hash}" if ref.hash is not None else f"tag {tag}"
        address = Address.parse(ref.url)
        return cls(url_key(ref.url), digest(version)[:12], size, address.name)


def url_key(url: str) -> str:
    """Return 24 hex digits for the object at `url`, which do not depend on credentials in it."""
    return digest(Address.parse(url).identity)[:24]


def digest(text: str) -> str:
    return blake3(text.encode(errors="surrogateescape")).hexdigest()
