"""The index of a shard at a URL of which a manifest tells the digest: found without asking for the
shard itself, and at best without asking its source for anything."""

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
    """What a manifest says of a shard; `tag` is a short one."""

    url: str
    samples: int
    bytes: int
    tag: int
    digest: str
    tokens: str | None
    """How its tokens were counted; None: they were not."""
    way: str | None
    """The same, where that can be done again."""
    content: bool = False
    """Whether the checksums of members are needed."""

    def fits(self, index: ShardIndex) -> bool:
        """Whether it is of the same samples; where they lie, every read compares by itself."""
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
    """The index that is kept here; else the one beside the shard, or one of what `passing` reads,
    and then it is kept. None if all these are missing, or of other samples.

    Args:
        passing: reads the shard by way of the cache; `whole`: all of it lies there already.

    Raises FetchError if the shard cannot be had.
    """
    place = sidecar.in_folder(known.url, known.bytes, known.tag, folder)
    found = sidecar.load(place)
    if found is not None and known.fits(found):
        return found
    found = _passed(known, passing) if whole else None
    found = found or _beside(known, source)
    found = found or (None if whole else _passed(known, passing))
    if found is not None:
        sidecar.keep_at(place, known.url, found)
    return found


def _beside(known: KnownShard, source: ObjectSource | None) -> ShardIndex | None:
    if source is None or not shard_access.is_plain_url(known.url):
        return None
    found = sidecar.load_remote(known.url, source)
    if found is not None and not known.fits(found):
        _log.info("%s: the index beside it is not the one that is needed", masked(known.url))
        return None
    return found


def _passed(known: KnownShard, passing: Read | None) -> ShardIndex | None:
    if passing is None or known.content or (known.tokens is not None and known.way is None):
        return None
    try:
        index = scan_passing(known.url, known.bytes, passing, known.way)
    except (ShardError, DamagedShardError, ObjectChangedError) as error:
        # damaged on its way perhaps: the reader of its samples will see to it
        _log.warning("indexed at its source, not as it is downloaded: %s", error)
        return None
    return index if known.fits(index) else None
