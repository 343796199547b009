"""The quality of an order's shuffle, compared with a full shuffle of the same samples."""

from dataclasses import dataclass

import numpy as np

from data.order.keyed_permutation import Ints
from data.order.sample_order import Order

_BATCHES = 200  # batches measured at most, evenly over the epoch
_MAX_SAMPLES = 2**21  # in larger epochs the ratio of reunions is not computed


@dataclass(frozen=True)
class ShuffleReport:
    """The quality of a shuffle. Every ratio is 1 for a full shuffle; the deviation is the price of
    having few live shards."""

    neighbour_distance: float
    """Mean distance, in the natural order, of samples that follow one another; over N / 3."""
    shards_per_batch: float
    """Mean number of different shards in a batch."""
    shards_per_batch_ratio: float
    """The same over that of a full shuffle: below 1, batches draw from too few shards."""
    same_shard_ratio: float
    """How often two samples of one batch are from one shard, over that of a full shuffle: above 1,
    they are too similar."""
    reunion_ratio: float | None
    """How often two samples of one batch are in one batch again in the next epoch, over that of a
    full shuffle. None above 2**21 samples per epoch."""
    live_shards: int
    """How many shards the samples of a batch can be from: the least that a node cache must hold."""


def shuffle_report(order: Order, *, batch: int = 1024, epoch: int = 0) -> ShuffleReport:
    """Measure batches of `batch` samples of one epoch. Takes seconds for any size.

    Raises ValueError unless there are at least two samples and 2 <= batch <= samples per epoch.
    """
    if not 2 <= batch <= order.samples:
        raise ValueError(f"batch must be in 2..{order.samples}, got {batch}")
    begins = _begins(order, batch) + epoch * order.samples
    positions = begins[:, None] + np.arange(batch)
    shards, samples = order.locate(positions)
    natural = (np.cumsum(order.counts) - order.counts)[shards] + samples
    distance = np.abs(np.diff(natural, axis=1)).mean() / ((order.samples + 1) / 3)
    different = float(np.mean([np.unique(row).size for row in shards]))
    shares = order.counts / order.samples
    expected = float((1 - (1 - shares) ** batch).sum())
    chance = float((shares * (order.counts - 1) / max(order.samples - 1, 1)).sum())
    return ShuffleReport(
        neighbour_distance=float(distance),
        shards_per_batch=different,
        shards_per_batch_ratio=different / expected,
        same_shard_ratio=_pairs(shards) / chance if chance else 1.0,
        reunion_ratio=_reunion(order, natural, batch, epoch + 1),
        live_shards=_live(order, epoch),
    )


def _begins(order: Order, batch: int) -> Ints:
    whole = order.samples // batch
    steps = np.unique(np.linspace(0, whole - 1, min(_BATCHES, whole)).astype(np.int64))
    return steps * batch


def _pairs(groups: Ints) -> float:
    """Return the share of pairs in a row of `groups`, shape (n, B), that are equal; mean over
    rows."""
    size = groups.shape[1]
    equal = [int((np.unique(row, return_counts=True)[1] ** 2).sum()) - size for row in groups]
    return float(np.mean(equal) / (size * (size - 1)))


def _reunion(order: Order, natural: Ints, batch: int, epoch: int) -> float | None:
    if order.samples > _MAX_SAMPLES:
        return None
    within = np.arange(order.samples)
    shards, samples = order.locate(epoch * order.samples + within)
    batches = np.empty_like(within)
    batches[(np.cumsum(order.counts) - order.counts)[shards] + samples] = within // batch
    sizes = np.bincount(within // batch)
    chance = float((sizes * (sizes - 1)).sum()) / (order.samples * (order.samples - 1))
    return _pairs(batches[natural]) / chance


def _live(order: Order, epoch: int) -> int:
    """Return the number of shards in the widest windows of all streams."""
    _, plan = order.plan(epoch)
    widest = np.zeros(order.streams, dtype=np.int64)
    np.maximum.at(widest, plan.window_streams, np.diff(plan.windows))
    return int(min(widest.sum(), np.count_nonzero(order.counts)))
