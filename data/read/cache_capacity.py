"""The check whether the caches are large enough for the shards that are read at a time."""

import logging
from collections.abc import Collection, Sequence

from data.cache.node_store import NodeStore
from data.read.sample_stream import SampleStream

_log = logging.getLogger(__name__)


def check_caches(stream: SampleStream, reads: Sequence[Collection[int]]) -> None:
    """Warn where a cache is smaller than the shards that some streams read at a time: most of their
    samples would bypass it, each with a request.

    Args:
        reads: of each dataset, the streams.
    """
    live: dict[NodeStore, float] = {}
    for dataset, order, of in zip(stream.datasets, stream.orders, reads, strict=True):
        sizes = dataset.manifest.bytes
        shards = min(len(sizes), order.window * len(of))
        live[dataset.store] = live.get(dataset.store, 0.0) + shards * float(sizes.mean())
    for store, size in live.items():
        if 0 < store.budget_bytes < size:
            _log.warning(
                "the cache %s may hold %.3g GB, and the shards that this rank reads at a time are"
                " %.3g GB: raise its bytes, or take fewer streams or a smaller window",
                store.folder,
                store.budget_bytes / 1e9,
                size / 1e9,
            )
