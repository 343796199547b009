"""Where a snapshot goes before its deadline, and how it is stored there: a pure rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

# What is counted on before anything was measured: a slow store, a slow disk.
STORE_RATE, LOCAL_RATE = float(16 << 20), float(128 << 20)  # bytes per second
MARGIN = 0.8  # share of the time left to count on: rates are estimates
CALL_S = 1.0  # before the last moment for a local copy, in which it is made in any case


class SaveTier(Enum):
    """Where; the more durable first."""

    STORE = "store"
    LOCAL = "local"  # the node's own disk: a spool copy first, then on towards the store


class TierCodec(Enum):
    """How it is stored in the store; a spool copy is always raw."""

    COMPRESSED = "compressed"
    RAW = "raw"


@dataclass(frozen=True)
class SaveRates:
    """As measured by earlier saves; None: never.

    Attributes:
        encode: raw bytes per second, of all threads together. Before it is known nothing is
            encoded under a deadline: see `codec.budget.may_encode`.
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
    """What is to be done.

    Attributes:
        to_store: raw bytes that still have to go to the store.
        to_local: bytes of a spool copy; None: there can be none.
        compresses: whether the store may have it compressed.
    """

    to_store: float
    to_local: float | None
    compresses: bool = True


@dataclass(frozen=True)
class TierChoice:
    """One way, and the seconds that it takes by what was measured."""

    tier: SaveTier
    codec: TierCodec
    needs_s: float
    bytes: float  # that are stored

    def meets(self, left_s: float) -> bool:
        """Whether it ends within the share of the time left that is counted on."""
        return self.needs_s <= MARGIN * left_s


def choices(task: SnapshotCopyTask, rates: SaveRates) -> list[TierChoice]:
    """All ways there are, the best first: the more durable, then the smaller, then the faster."""
    order = list(SaveTier)
    return sorted(
        _all(task, rates), key=lambda way: (order.index(way.tier), way.bytes, way.needs_s)
    )


def choose(task: SnapshotCopyTask, rates: SaveRates, left_s: float) -> TierChoice:
    """The best way that meets the deadline; where none does, the one that ends first.

    Args:
        left_s: seconds until the deadline.
    """
    ways = choices(task, rates)
    in_time = [way for way in ways if way.meets(left_s)]
    return in_time[0] if in_time else min(ways, key=lambda way: way.needs_s)


def is_last_call(task: SnapshotCopyTask, rates: SaveRates, left_s: float) -> bool:
    """Whether a spool copy that does not begin soon comes too late, or the deadline is over: then
    it is made, whatever is hoped of the store, because a store may stop at any moment."""
    if task.to_local is None:
        return False
    local_s = task.to_local / (rates.local or LOCAL_RATE)
    return left_s <= 0 or local_s <= MARGIN * left_s <= local_s + MARGIN * CALL_S


def _all(task: SnapshotCopyTask, rates: SaveRates) -> Iterator[TierChoice]:
    store = rates.store or STORE_RATE
    yield TierChoice(SaveTier.STORE, TierCodec.RAW, task.to_store / store, task.to_store)
    if task.compresses and rates.encode:
        # writing waits for encoding, which is the worst case
        small = task.to_store * rates.share
        needs_s = task.to_store / rates.encode + small / store
        yield TierChoice(SaveTier.STORE, TierCodec.COMPRESSED, needs_s, small)
    if task.to_local is not None:
        needs_s = task.to_local / (rates.local or LOCAL_RATE)
        yield TierChoice(SaveTier.LOCAL, TierCodec.RAW, needs_s, task.to_local)
