"""The ring of a generation's nodes: who keeps replicas for whom. Plain data and pure rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.service.protocol.messages import load_generation
from checkpointing.service.replication.authenticated_channel import KEY_BYTES
from checkpointing.service.snapshots import Generation

MAX_PORT = 65535


@dataclass(frozen=True)
class RingNode:
    """One of the ring, as others reach its service."""

    name: str
    address: str
    port: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReplicationRing:
    """The nodes of a generation, in the order of their first ranks; each replicates to the next.

    Attributes:
        key: 32 random bytes that the services prove themselves by.
        me: this node, by its place in `nodes`.
    """

    generation: Generation
    nodes: tuple[RingNode, ...]
    me: int
    key: bytes = field(repr=False)

    @property
    def mine(self) -> RingNode:
        return self.nodes[self.me]

    @property
    def next(self) -> int | None:
        """Who keeps this node's replicas; None if it is the only one."""
        return (self.me + 1) % len(self.nodes) if len(self.nodes) > 1 else None


def dump_ring(ring: ReplicationRing) -> dict[str, Any]:
    """For a trainer's connection to its own service alone: the key is in it."""
    return {
        "generation": asdict(ring.generation),
        "nodes": [asdict(node) for node in ring.nodes],
        "me": ring.me,
        "key": ring.key.hex(),
    }


def load_ring(plain: Mapping[str, Any]) -> ReplicationRing:
    """Raises:
    ServiceError: it is no ring.
    """
    generation = load_generation(plain["generation"])
    try:
        nodes = tuple(RingNode(**{**one, "ranks": tuple(one["ranks"])}) for one in plain["nodes"])
        ring = ReplicationRing(generation, nodes, plain["me"], bytes.fromhex(plain["key"]))
    except (KeyError, TypeError, ValueError):
        raise ServiceError("what came is no ring of nodes") from None  # the key is in it
    if not _is_ring(ring):
        raise ServiceError("what came is no ring of nodes: its numbers do not fit together")
    return ring


def _is_ring(ring: ReplicationRing) -> bool:
    ranks = [rank for node in ring.nodes for rank in node.ranks]
    return (
        type(ring.me) is int
        and 0 <= ring.me < len(ring.nodes)
        and len(ring.key) == KEY_BYTES
        and len(ranks) == ring.generation.world_size  # before so many are listed
        and all(type(rank) is int for rank in ranks)
        and sorted(ranks) == list(range(len(ranks)))
        and all(isinstance(node.address, str) and node.address for node in ring.nodes)
        and all(type(node.port) is int and 0 < node.port <= MAX_PORT for node in ring.nodes)
    )


def pace(bytes_per_s: float | None, most: int) -> int:
    """Bytes to send at a time, so that at this rate no pause between them is long."""
    if bytes_per_s is None:
        return most
    return int(min(most, max(64 << 10, bytes_per_s)))


def choose_slot(steps: tuple[int | None, int | None], complete: int | None) -> int:
    """Which of a rank's two replicas gives way to a newer one, by index.

    Args:
        steps: of the replicas; None: not whole.
        complete: the newest step that all ranks of the origin have whole here: that one stays.
    """
    wanted = [index for index, step in enumerate(steps) if step is None]
    wanted = wanted or [index for index, step in enumerate(steps) if step != complete]
    return min(wanted, key=lambda index: steps[index] or -1)


def newest_complete(held: Mapping[int, frozenset[int]], ranks: frozenset[int]) -> int | None:
    """The newest step that all of these ranks have.

    Args:
        held: steps by rank.
    """
    if not ranks:
        return None
    common = frozenset.intersection(*(held.get(rank, frozenset()) for rank in ranks))
    return max(common, default=None)
