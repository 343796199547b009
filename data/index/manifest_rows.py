"""The rows of a manifest, one for each shard, and their stored form."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data.index import column_container
from data.index.column_container import Column
from data.index.manifest_summary import HASH
from data.index.manifest_summary import KIND as KIND
from data.index.shard.shard_index import ShardIndex
from data.index.shard_urls import relative
from data.source.protocol import short_tag


class ShardRow(NamedTuple):
    """One shard: its absolute path or URL, its number of samples, its size, and the tag of its
    version.

    `hash` and `digest` as in `ShardIndex`; `tokens` is the sum over its samples, None if not
    counted.
    """

    url: str
    samples: int
    bytes: int
    tag: str | None
    hash: str | None
    digest: str
    tokens: int | None = None


def row_of(url: str, index: ShardIndex) -> ShardRow:
    """Return the row of a shard for the manifest."""
    tokens = None if index.n_tokens is None else int(index.n_tokens.sum(dtype=np.int64))
    return ShardRow(url, len(index), index.bytes, index.tag, index.hash, index.digest, tokens)


def pack_rows(rows: Sequence[ShardRow], base: str, tokens: str | None) -> bytes:
    """Return the content of a manifest that is stored in `base`."""
    urls = [relative(row.url, base).encode("utf-8", "surrogateescape") for row in rows]
    packed: dict[str, Column] = {
        "samples": np.array([row.samples for row in rows], np.int64),
        "bytes": np.array([row.bytes for row in rows], np.int64),
        "tags": np.array([short_tag(row.tag) for row in rows], np.uint64),
        "hashes": _hashes(row.hash for row in rows),
        "digests": _hashes(row.digest for row in rows),
        "url_at": column_container.narrow(np.cumsum([0, *map(len, urls)], dtype=np.uint64)),
        "urls": np.frombuffer(b"".join(urls), np.uint8),
    }
    counts = [row.tokens for row in rows if row.tokens is not None]
    has_tokens = bool(rows) and len(counts) == len(rows)
    if has_tokens:
        packed["tokens"] = np.array(counts, np.int64)
    return column_container.pack(KIND, {"tokens": tokens if has_tokens else None}, packed)


def _hashes(hashes: Iterable[str | None]) -> npt.NDArray[np.uint8]:
    """Return hex hashes as bytes of shape (n * 32,), zeros for none."""
    return np.frombuffer(b"".join(bytes.fromhex(h or "00" * HASH) for h in hashes), np.uint8)
