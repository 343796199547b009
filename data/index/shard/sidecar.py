"""Sidecars: where the index of a shard is stored, and whether it fits the shard.

It is `<shard>.index` beside a local shard; otherwise, or where that cannot be written, it is in an
index folder, by default in the user's cache, under a name made of the shard's URL and version.
"""

import errno
import logging
import os
import re
import time
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from blake3 import blake3

from data.durable_files import write_atomically
from data.errors import DataError, IndexFileError
from data.index import column_container, shard_access
from data.index.shard.shard_index import KIND, ShardIndex, checked
from data.index.tar.tar_header import BLOCK
from data.index.tar.tar_walk import Read
from data.source.address import Address, masked, split_query
from data.source.protocol import ObjectSource, short_tag

SUFFIX = ".index"
DEBRIS_AGE_S = 24 * 3600  # longer than any write of a sidecar takes
PROBES = 16  # headers that are compared for a shard with another modification time

_DEBRIS = re.compile(r"\..+\.index\.[0-9a-f]{32}")

_log = logging.getLogger(__name__)


def default_folder() -> Path:
    """Return the user's own folder of indexes."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hpckit" / "index"


def beside(shard: str) -> str:
    """Return the sidecar's path or URL beside its shard. The query of a URL, which may sign it, is
    kept."""
    path, query = split_query(shard)
    return path + SUFFIX + query


def in_folder(shard: str, size: int, tag: int, folder: Path | None) -> Path:
    """Return the sidecar's path in an index folder, which differs for each version of the shard.

    `tag` is a number as of `short_tag`, which manifests contain, so no request for the shard is
    needed.
    """
    address = Address.parse(shard).identity if shard_access.is_url(shard) else shard
    name = blake3(f"{address}\0{size}\0{tag}".encode("utf-8", "surrogateescape")).hexdigest()
    return (folder or default_folder()) / f"{name[:40]}{SUFFIX}"


def to_bytes(index: ShardIndex) -> bytes:
    """Return the content of a sidecar."""
    return column_container.pack(KIND, index.meta, index.columns)


def from_bytes(content: bytes, place: Path | str) -> ShardIndex:
    """Read a sidecar's content. Raises IndexFileError."""
    found = column_container.unpack(content, KIND, place)
    return checked(found.meta, found.columns, place)


def load(place: Path) -> ShardIndex | None:
    """Return the index in the sidecar at `place`; None if there is none, or (with a warning) a
    broken one."""
    try:
        return from_bytes(place.read_bytes(), place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, IndexFileError) as error:
        if not (isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG):
            _log.warning("the index of a shard cannot be used and is rebuilt: %s", error)
        return None


def find(shard: str, size: int, tag: str | None, folder: Path | None) -> ShardIndex | None:
    """Return the index of exactly this version of a shard, if one is stored."""
    places = [] if shard_access.is_url(shard) else [Path(beside(shard))]
    places.append(in_folder(shard, size, short_tag(tag), folder))
    for place in places:
        found = load(place)
        if found is not None and (found.bytes, found.tag) == (size, tag):
            return found
    return None


def is_kept(shard: str, size: int, tag: str | None, folder: Path | None) -> bool:
    """Return whether there is a sidecar, without reading it."""
    if not shard_access.is_url(shard) and Path(beside(shard)).is_file():
        return True
    return in_folder(shard, size, short_tag(tag), folder).is_file()


def find_fitting(
    shard: str, opened: shard_access.ShardScanInput, source: ObjectSource | None
) -> ShardIndex | None:
    """Return the index beside the shard that was made for a copy of it with another modification
    time or etag.

    The size must be equal, and some headers all over the shard, which has to end after its last
    member; every read compares its own headers.
    """
    found = load(Path(beside(shard))) if source is None else load_remote(shard, source)
    if found is None or found.bytes != opened.bytes or not _is_like(found, opened.read):
        return None
    return found


def save(shard: str, index: ShardIndex) -> None:
    """Write the sidecar beside its local shard. Raises OSError."""
    write_atomically(Path(beside(shard)), to_bytes(index))


def keep(shard: str, index: ShardIndex, folder: Path | None) -> Path | None:
    """Write the sidecar; returns its path, or None, with a warning, if it can be stored nowhere."""
    if not shard_access.is_url(shard):
        try:
            save(shard, index)
            return Path(beside(shard))
        except OSError as error:
            _log.info(
                "%s: no index can be written beside it (%s), so the index folder is used",
                shard,
                error,
            )
    return keep_at(in_folder(shard, index.bytes, short_tag(index.tag), folder), shard, index)


def keep_at(place: Path, shard: str, index: ShardIndex) -> Path | None:
    """Write the sidecar of `shard` at `place`, a path of `in_folder`. Otherwise as `keep`."""
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(place, to_bytes(index))
    except OSError as error:
        _log.warning(
            "%s: its index cannot be stored (%s) and is used from memory", masked(shard), error
        )
        return None
    return place


def remove_debris(folders: Iterable[str]) -> None:
    """Remove unfinished sidecars in these folders, whose writers were killed days ago."""
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                old = [e for e in entries if _DEBRIS.fullmatch(e.name) and _is_old(e)]
            for entry in old:
                Path(entry.path).unlink(missing_ok=True)
        except OSError as error:
            _log.info("%s: cannot clean up here (%s)", folder, error)


def _is_old(entry: "os.DirEntry[str]") -> bool:
    return time.time() - entry.stat(follow_symlinks=False).st_mtime > DEBRIS_AGE_S


def load_remote(shard: str, source: ObjectSource) -> ShardIndex | None:
    """Return the index beside the shard at a URL; None if there is none, or (with a warning) a
    broken one."""
    url = beside(shard)
    try:
        return from_bytes(source.get(url), masked(url))
    except IndexFileError as error:
        _log.warning("the index of a shard cannot be used and is rebuilt: %s", error)
    except (DataError, OSError) as error:
        _log.debug("%s: the index beside the shard cannot be read (%s)", masked(shard), error)
    return None


def _is_like(index: ShardIndex, read: Read) -> bool:
    offsets, headers = index.columns["offset"], index.columns["header"]
    step = max(1, (len(offsets) - 1) // (PROBES - 1))
    chosen = {*range(0, len(offsets), step), len(offsets) - 1} if len(offsets) else set()
    return _ends_after_last(index, read) and all(
        zlib.crc32(read(int(offsets[i]) - BLOCK, BLOCK)) == int(headers[i]) for i in sorted(chosen)
    )


def _ends_after_last(index: ShardIndex, read: Read) -> bool:
    """Return whether the archive ends after the last member. More samples may fit into a tar of the
    same size, as tar fills its last record of 10 KiB up."""
    ends = index.columns["offset"].astype(np.int64) + index.columns["size"].astype(np.int64)
    end = -(-int(ends.max(initial=0)) // BLOCK) * BLOCK
    return end + BLOCK > index.bytes or not any(read(end, BLOCK))
