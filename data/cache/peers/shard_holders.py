"""Which nodes have a shard or fetch it, as its tracker knows, and from which of them another node
gets it."""

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

FANOUT = 2
"""The number of nodes that get a shard from one node at a time, as long as others have it too:
nodes that want it at the same time form a binary tree below the one that fetches it."""
KEPT = 16
"""The number of nodes with a whole shard that are remembered of each shard."""


@dataclass(frozen=True)
class ShardHolder:
    """A node that has a shard, or is getting it."""

    is_whole: bool
    parent: int | None = None
    """The node from which it gets the shard; None: from the source, or it is whole."""


def choose_holder(
    holders: Mapping[int, ShardHolder], asker: int, excluded: Collection[int]
) -> int | None:
    """Return the node from which `asker` should get the shard; None: from the source.

    It never gets it from a node that itself gets it, directly or through others, from `asker`. Of
    the others, those come first from which fewer than `FANOUT` nodes get the shard at present, and
    of these the one that is nearest to the source.
    """
    children = dict.fromkeys(holders, 0)
    for holder in holders.values():
        if not holder.is_whole and holder.parent in children:
            children[holder.parent] += 1
    found: list[tuple[bool, int, int, int]] = []
    for node in holders:
        chain = _chain(holders, node)
        if node not in excluded and asker not in chain:
            found.append((children[node] >= FANOUT, len(chain), children[node], node))
    return min(found)[-1] if found else None


def _chain(holders: Mapping[int, ShardHolder], node: int) -> list[int]:
    """Return the node, the one from which it gets the shard, and so on."""
    chain: list[int] = []
    at: int | None = node
    while at is not None and at not in chain:
        chain.append(at)
        holder = holders.get(at)
        at = None if holder is None or holder.is_whole else holder.parent
    return chain


class ShardHolders:
    """The nodes that have the shards which one node tracks. Shards are named by the stems of their
    files in the cache. Thread-safe; it is lost with its process, and then costs fetches only."""

    def __init__(self) -> None:
        self._shards: dict[str, dict[int, ShardHolder]] = {}
        self._lock = threading.Lock()

    def locate(
        self, shard: str, asker: int, failed: Collection[int], avoided: Collection[int] = ()
    ) -> int | None:
        """Return the node from which `asker` should get the shard; None: from the source. From now
        on `asker` counts as a node that gets it.

        Args:
            failed: nodes from which it could not get it, which are forgotten.
            avoided: others from which it does not want it, as they failed it or are busy.
        """
        with self._lock:
            holders = self._shards.setdefault(shard, {})
            for node in (*failed, asker):
                holders.pop(node, None)
            chosen = choose_holder(holders, asker, {*failed, *avoided})
            holders[asker] = ShardHolder(is_whole=False, parent=chosen)
            return chosen

    def settle(self, shard: str, node: int, *, is_whole: bool) -> None:
        """Note that a node has got the shard, or has given it up."""
        with self._lock:
            holders = self._shards.setdefault(shard, {})
            if is_whole:
                _add_whole(holders, node)
            else:
                holders.pop(node, None)
            if not holders:
                del self._shards[shard]

    def add(self, node: int, shards: Iterable[str]) -> None:
        """Note that a node has these shards in its cache."""
        with self._lock:
            for shard in shards:
                _add_whole(self._shards.setdefault(shard, {}), node)


def _add_whole(holders: dict[int, ShardHolder], node: int) -> None:
    holders.pop(node, None)
    whole = [one for one, holder in holders.items() if holder.is_whole]
    if len(whole) >= KEPT:
        del holders[whole[0]]
    holders[node] = ShardHolder(is_whole=True)
