"""The choice of the shards to evict for another one: a pure function.

L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
Journal 5(2), 1966: remove what is needed again at the latest time. The order of training is known,
so this can be done here; least recently used applies only to shards that are in no plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EvictionCandidate:
    """A cached shard that no process has open."""

    stem: str
    bytes: int
    next_use_s: float | None
    """The time of its next use, by the clock of the next-use plans; None if it is in no plan."""

    used_s: float
    """When it was last opened."""


def choose_victims(
    candidates: Sequence[EvictionCandidate], shortage: int, needed_s: float
) -> list[EvictionCandidate] | None:
    """Return the shards to evict to free `shortage` bytes for a shard that is needed at `needed_s`.

    Shards in no plan come first, least recently used first; then those with the latest next use;
    none that is needed as soon as the new shard. None if that is not enough, so that nothing is
    evicted.
    """
    chosen: list[EvictionCandidate] = []
    gained = 0
    for candidate in sorted(candidates, key=_order):
        next_use_s = candidate.next_use_s
        if gained >= shortage or (next_use_s is not None and next_use_s <= needed_s):
            break
        chosen.append(candidate)
        gained += candidate.bytes
    if gained < shortage:
        return None
    # a large shard may have made the eviction of smaller ones unnecessary
    for candidate in reversed(list(chosen)):
        if gained - candidate.bytes >= shortage:
            chosen.remove(candidate)
            gained -= candidate.bytes
    return chosen


def _order(candidate: EvictionCandidate) -> tuple[bool, float, str]:
    if candidate.next_use_s is None:
        return False, candidate.used_s, candidate.stem
    return True, -candidate.next_use_s, candidate.stem
