"""Finding the index of a shard at a URL whose digest is in a manifest, without requesting the shard
itself, and if possible without any request to its source."""

import logging
from dataclasses import dataclass
from pathlib import Path

from data.errors import DamagedShardError, ObjectChangedError, ShardError
from data.index import shard_access
from data.index.shard import sidecar
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import scan_passing
from data.index.tar.tar_walk import Read
from data.source.address import masked
from data.source.protocol import ObjectSource

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownShard:
    """The entry of a shard in a manifest; `tag` is a number as of `short_tag`."""

    url: str
    samples: int
    bytes: int
    tag: int
    digest: str
    tokens: str | None
    """How its tokens were counted; None if they were not."""
    way: str | None
    """The way of counting tokens, if it can be repeated; else None."""
    content: bool = False
    """Whether the checksums of members are needed."""

    def fits(self, index: ShardIndex) -> bool:
        """Return whether an index is of the same samples. Their offsets are checked by every
        read."""
        same = (len(index), index.bytes, index.digest) == (self.samples, self.bytes, self.digest)
        has_all = index.has_content_sums or not self.content
        return same and has_all and (self.tokens is None or index.tokens == self.tokens)


def find(
    known: KnownShard,
    *,
    source: ObjectSource | None,
    folder: Path | None,
    passing: Read | None,
    whole: bool,
) -> ShardIndex | None:
    """Return the locally stored index; else the one beside the shard, or one made from what
    `passing` reads, which is then stored. None if there is none of these samples.

    Args:
        passing: reads the shard through the cache.
        whole: whether all of the shard is in the cache already.

    Raises FetchError if the shard cannot be fetched.
    """
    place = sidecar.in_folder(known.url, known.bytes, known.tag, folder)
    found = sidecar.load(place)
    if found is not None and known.fits(found):
        return found
    found = _index_by_reading(known, passing) if whole else None
    found = found or _index_beside(known, source)
    found = found or (None if whole else _index_by_reading(known, passing))
    if found is not None:
        sidecar.keep_at(place, known.url, found)
    return found


def _index_beside(known: KnownShard, source: ObjectSource | None) -> ShardIndex | None:
    if source is None or not shard_access.is_plain_url(known.url):
        return None
    found = sidecar.load_remote(known.url, source)
    if found is not None and not known.fits(found):
        _log.info("%s: the index beside it does not fit", masked(known.url))
        return None
    return found


def _index_by_reading(known: KnownShard, passing: Read | None) -> ShardIndex | None:
    if passing is None or known.content or (known.tokens is not None and known.way is None):
        return None
    try:
        index = scan_passing(known.url, known.bytes, passing, known.way)
    except (ShardError, DamagedShardError, ObjectChangedError) as error:
        # the download may be damaged: the reader of the samples handles that
        _log.warning("indexed at its source and not during its download: %s", error)
        return None
    return index if known.fits(index) else None
