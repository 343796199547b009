"""Says which node of a generation keeps replicas for which: the ring as plain data and pure
rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from checkpointing.authenticated_channel import KEY_BYTES
from checkpointing.errors import ServiceError
from checkpointing.service.protocol.messages import load_generation
from checkpointing.service.snapshots import Generation

MAX_PORT = 65535


@dataclass(frozen=True)
class RingNode:
    """A node of the ring, with the address of its service."""

    name: str
    address: str
    port: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ReplicationRing:
    """The nodes of a generation in the order of their first ranks; each replicates to the next.

    Attributes:
        key: 32 random bytes by which the services prove themselves.
        me: index of this node in `nodes`.
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
        """Return the index of the node that keeps this node's replicas; None if there is only
        one."""
        return (self.me + 1) % len(self.nodes) if len(self.nodes) > 1 else None


def dump_ring(ring: ReplicationRing) -> dict[str, Any]:
    """Return the ring as plain data. Only for a trainer's connection to its own service, because
    the key is in it."""
    return {
        "generation": asdict(ring.generation),
        "nodes": [asdict(node) for node in ring.nodes],
        "me": ring.me,
        "key": ring.key.hex(),
    }


def load_ring(plain: Mapping[str, Any]) -> ReplicationRing:
    """Return the ring in a message.

    Raises:
        ServiceError: it is not a ring.
    """
    generation = load_generation(plain["generation"])
    try:
        nodes = tuple(RingNode(**{**one, "ranks": tuple(one["ranks"])}) for one in plain["nodes"])
        ring = ReplicationRing(generation, nodes, plain["me"], bytes.fromhex(plain["key"]))
    except (KeyError, TypeError, ValueError):
        # no cause is shown: the key is in it
        raise ServiceError("the message is not a valid ring of nodes") from None
    if not _is_ring(ring):
        raise ServiceError(
            "the message is not a valid ring of nodes: its numbers do not fit together"
        )
    return ring


def _is_ring(ring: ReplicationRing) -> bool:
    ranks = [rank for node in ring.nodes for rank in node.ranks]
    return (
        type(ring.me) is int
        and 0 <= ring.me < len(ring.nodes)
        and len(ring.key) == KEY_BYTES
        and len(ranks) == ring.generation.world_size  # checked before so many ranks are listed
        and all(type(rank) is int for rank in ranks)
        and sorted(ranks) == list(range(len(ranks)))
        and all(isinstance(node.address, str) and node.address for node in ring.nodes)
        and all(type(node.port) is int and 0 < node.port <= MAX_PORT for node in ring.nodes)
    )


def pace(bytes_per_s: float | None, most: int) -> int:
    """Return the bytes to send at a time, so that at this rate no pause between them is long."""
    if bytes_per_s is None:
        return most
    return int(min(most, max(64 << 10, bytes_per_s)))


def choose_slot(steps: tuple[int | None, int | None], complete: int | None) -> int:
    """Return the index of the replica of a rank that a newer one replaces.

    Args:
        steps: of the two replicas; None: not whole.
        complete: the newest step that all ranks of the origin have whole here, which is kept.
    """
    wanted = [index for index, step in enumerate(steps) if step is None]
    wanted = wanted or [index for index, step in enumerate(steps) if step != complete]
    return min(wanted, key=lambda index: steps[index] or -1)
