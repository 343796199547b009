"""Which shards make room for another: a pure function.

L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
Journal 5(2), 1966: remove what is needed again at the latest time. The order of training is known,
so here this can be done; least recently used is only for what no plan names.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EvictionCandidate:
    """A cached shard that nobody has open."""

    stem: str
    bytes: int
    next_use_s: float | None
    """By the clock of all plans; None if it is in no plan."""

    used_s: float
    """When it was last opened."""


def choose_victims(
    candidates: Sequence[EvictionCandidate], shortage: int, needed_s: float
) -> list[EvictionCandidate] | None:
    """What to remove to gain `shortage` bytes for a shard that is needed at `needed_s`.

    In no plan first, longest unused first; then the farthest next use; nothing that is needed as
    soon as the newcomer. None if that is not enough: then nothing need be removed.
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
    for candidate in reversed(list(chosen)):  # a large one may have made smaller ones needless
        if gained - candidate.bytes >= shortage:
            chosen.remove(candidate)
            gained -= candidate.bytes
    return chosen


def _order(candidate: EvictionCandidate) -> tuple[bool, float, str]:
    if candidate.next_use_s is None:
        return False, candidate.used_s, candidate.stem
    return True, -candidate.next_use_s, candidate.stem
