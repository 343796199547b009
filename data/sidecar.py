"""The index kept beside its shard as `<shard>.index.json`: checked when read, atomic when written.

{"version": 1, "bytes": int, "mtime_ns": int, "blake3": hex | null,
 "samples": [[key, {extension: [offset, size, crc32 of the header]}], ...]}
"""

import json
import logging
from pathlib import Path
from typing import Any

from data.errors import ShardError
from data.files import write_atomically
from data.index import BLOCK, Member, SampleEntry, ShardIndex, index_shard

INDEX_VERSION = 1

_log = logging.getLogger(__name__)


def sidecar_path(shard: Path) -> Path:
    """Where the index of `shard` is kept."""
    return shard.with_name(f"{shard.name}.index.json")


def load_or_build(path: Path) -> ShardIndex:
    """The index of the shard at `path`: from its sidecar, if that fits the shard's size and mtime.

    Else the shard is indexed and the sidecar written; where it cannot be written, the index lives
    in memory and a warning says so. Raises ShardError as `index_shard` does.
    """
    found = _load(path)
    if found is not None:
        return found
    index = index_shard(path)
    try:
        save(index)
    except OSError as error:
        _log.warning("%s: cannot keep the index (%s), using it from memory", path, error)
    return index


def save(index: ShardIndex) -> None:
    """Write the sidecar of an index. Raises OSError."""
    write_atomically(sidecar_path(index.path), json.dumps(to_json(index)).encode())


def to_json(index: ShardIndex) -> dict[str, Any]:
    """The sidecar's content."""
    return {
        "version": INDEX_VERSION,
        "bytes": index.bytes,
        "mtime_ns": index.mtime_ns,
        "blake3": index.blake3,
        "samples": [[entry.key, entry.members] for entry in index.samples],
    }


def from_json(path: Path, content: Any) -> ShardIndex:
    """Read a sidecar's content. Raises ValueError, TypeError or KeyError if it is not one."""
    if content["version"] != INDEX_VERSION:
        raise ValueError(f"index version {content['version']!r}")
    size, mtime_ns, digest = int(content["bytes"]), int(content["mtime_ns"]), content["blake3"]
    if not isinstance(digest, str | None):
        raise TypeError("blake3 is no string")
    samples = tuple(
        SampleEntry(str(key), {str(ext): _member(found, size) for ext, found in members.items()})
        for key, members in content["samples"]
    )
    return ShardIndex(path, size, mtime_ns, digest, samples)


def _member(found: Any, size: int) -> Member:
    member = Member(*found)
    if not all(type(number) is int for number in member):
        raise TypeError(f"member {found!r} is not three integers")
    if not BLOCK <= member.offset <= member.offset + member.size <= size:
        raise ValueError(f"member {found!r} lies outside the shard")
    return member


def _load(path: Path) -> ShardIndex | None:
    """The index from the sidecar, or None if there is none that fits."""
    try:
        status = path.stat()
    except OSError as error:
        raise ShardError(path, 0, f"cannot be read: {error.strerror}") from error
    try:
        index = from_json(path, json.loads(sidecar_path(path).read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("%s: its index is unusable (%r), building it anew", path, error)
        return None
    if (index.bytes, index.mtime_ns) != (status.st_size, status.st_mtime_ns):
        _log.warning("%s: changed since it was indexed, building the index anew", path)
        return None
    return index
