"""Chooses where a snapshot goes before its deadline, and how it is stored there: a pure rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

# The rates assumed before anything was measured: those of a slow store and a slow disk.
STORE_RATE, LOCAL_RATE = float(16 << 20), float(128 << 20)  # bytes per second
MARGIN = 0.8  # share of the time left that is planned with, because rates are estimates
CALL_S = 1.0  # seconds before the last moment for a local copy, within which it is made in any case


class SaveTier(Enum):
    """The place that a snapshot is written to; the more durable one first."""

    STORE = "store"
    LOCAL = "local"  # the node's own disk: first a spool copy, then the store


class TierCodec(Enum):
    """How a snapshot is stored in the store; a spool copy is always raw."""

    COMPRESSED = "compressed"
    RAW = "raw"


@dataclass(frozen=True)
class SaveRates:
    """The rates measured in earlier saves; None: not measured yet.

    Attributes:
        encode: raw bytes per second, of all threads together. Before it is known nothing is encoded
            under a deadline: see `may_encode` of the codec's budget. None also where nothing is
            encoded because the store is faster.
        share: stored bytes per raw byte of what was encoded.
        store: stored bytes per second to the durable store.
        local: bytes per second to the node's disk, durable there.
    """

    encode: float | None = None
    share: float = 1.0
    store: float | None = None
    local: float | None = None


@dataclass(frozen=True)
class SnapshotCopyTask:
    """What is to be written.

    Attributes:
        to_store: raw bytes that still have to go to the store.
        to_local: bytes of a spool copy; None: none can be made.
        compresses: whether the store may hold it compressed.
    """

    to_store: float
    to_local: float | None
    compresses: bool = True


@dataclass(frozen=True)
class TierChoice:
    """A way to write a snapshot, and the seconds that it takes at the measured rates."""

    tier: SaveTier
    codec: TierCodec
    needs_s: float
    bytes: float  # bytes that are stored

    def meets(self, left_s: float) -> bool:
        """Return whether it ends within the share of the time left that is planned with."""
        return self.needs_s <= MARGIN * left_s


def choices(task: SnapshotCopyTask, rates: SaveRates) -> list[TierChoice]:
    """Return all possible ways, the best first: the more durable, then the smaller, then the
    faster."""
    order = list(SaveTier)
    return sorted(
        _all(task, rates), key=lambda way: (order.index(way.tier), way.bytes, way.needs_s)
    )


def choose_tier(task: SnapshotCopyTask, rates: SaveRates, left_s: float) -> TierChoice:
    """Return the best way that meets the deadline; if none does, the one that ends first.

    Args:
        left_s: seconds until the deadline.
    """
    ways = choices(task, rates)
    in_time = [way for way in ways if way.meets(left_s)]
    return in_time[0] if in_time else min(ways, key=lambda way: way.needs_s)


def is_last_call(task: SnapshotCopyTask, rates: SaveRates, left_s: float) -> bool:
    """Return whether a spool copy that does not begin soon comes too late, or the deadline is over:
    then the copy is made however likely the store is to be in time, because a store may stop at any
    moment."""
    if task.to_local is None:
        return False
    local_s = task.to_local / (rates.local or LOCAL_RATE)
    return left_s <= 0 or local_s <= MARGIN * left_s <= local_s + MARGIN * CALL_S


def _all(task: SnapshotCopyTask, rates: SaveRates) -> Iterator[TierChoice]:
    store = rates.store or STORE_RATE
    yield TierChoice(SaveTier.STORE, TierCodec.RAW, task.to_store / store, task.to_store)
    if task.compresses and rates.encode:
        # Writing waits for encoding, which is the worst case.
        small = task.to_store * rates.share
        needs_s = task.to_store / rates.encode + small / store
        yield TierChoice(SaveTier.STORE, TierCodec.COMPRESSED, needs_s, small)
    if task.to_local is not None:
        needs_s = task.to_local / (rates.local or LOCAL_RATE)
        yield TierChoice(SaveTier.LOCAL, TierCodec.RAW, needs_s, task.to_local)
