"""Sets up replicas of snapshots on other nodes, and fetches them for a restore."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from checkpointing.authenticated_channel import KEY_BYTES
from checkpointing.connections import Connections
from checkpointing.errors import ServiceError
from checkpointing.events import ReplicationOff
from checkpointing.ranks.peer_address import NetworkLocation, choose_address, network_location
from checkpointing.ranks.rank_group import first_reasons
from checkpointing.restore.memory_restore import CompleteSnapshot
from checkpointing.service.client.held_snapshots import (
    REPLICA,
    HeldSnapshot,
    LeftoverArena,
    PulledSnapshot,
    load_held_snapshot,
    load_snapshot_metadata,
)
from checkpointing.service.client.service_connection import Introduce, ServiceConnection, give_back
from checkpointing.service.replication.replication_ring import ReplicationRing, RingNode, dump_ring
from checkpointing.service.snapshots import Generation
from checkpointing.staging.arena import Arena

logger = logging.getLogger("checkpointing")

MOST = 1  # largest number of replicas of a snapshot
PULL_S = 1800.0  # seconds within which a snapshot must arrive from another node


@dataclass(frozen=True)
class PeerEndpoint:
    """The address of the peer server of a rank's service. Plain data, which is sent between
    ranks."""

    standing: NetworkLocation
    address: str = ""
    port: int = 0
    problem: str | None = None


class PeerReplicas:
    """Manages one rank's replicas during the life of its Checkpointer. `connect` is a
    collective."""

    def __init__(self, replicas: int, connections: Connections) -> None:
        self._is_wanted = replicas > 0
        self._ranks, self._client = connections.ranks, connections.client
        self._events = connections.events
        self._ring: ReplicationRing | None = None

    def connect(self, generation: Generation) -> None:
        """Connect the services of this generation's nodes. If that fails, training continues
        without replicas: the log and the event "replication_off" say why."""
        ranks = self._ranks
        if not self._is_wanted:
            return
        endpoints = ranks.all_gather(self._listen(), ranks.control)
        key = ranks.broadcast(secrets.token_bytes(KEY_BYTES), ranks.control)
        self._ring, why = None, why_not(endpoints)
        if why is None:
            nodes, me = ring_of(endpoints, ranks.rank)
            self._ring = ReplicationRing(generation, nodes, me, key)
            why = self._send_ring()
        problems = [one for one in ranks.all_gather(why, ranks.control) if one]
        if problems:
            self._ring = None
        elif len({one.standing.node for one in endpoints}) == 1:
            # the service of one node, which may still hold what others have sent to it
            problems = ["there is only one node: use replicas=0, or more nodes"]
        else:
            return
        self._events.emit(ReplicationOff(reason=problems[0]))
        if ranks.rank == 0:
            logger.warning("snapshots are not replicated: %s", problems[0])

    def source(
        self, gathered: Sequence[Sequence[HeldSnapshot]], whole: CompleteSnapshot, digest: str
    ) -> int | None:
        """Returns the node from which this rank's part can be fetched, as its position in the ring;
        this rank's own node if that has it, None if no node does.

        Args:
            gathered: for each rank, the snapshots that its node holds.
            digest: digest of the layout that the snapshot must have.
        """
        ring = self._ring
        if ring is None:
            return None
        wanted = (whole.step, whole.generation, self._ranks.rank, digest)
        holders = [
            index
            for index, node in enumerate(ring.nodes)
            if any(
                (one.step, one.generation, one.rank, one.digest) == wanted
                for one in gathered[node.ranks[0]]
            )
        ]
        return min(holders, key=lambda index: index != ring.me, default=None)

    def pull(self, whole: CompleteSnapshot, node: int) -> PulledSnapshot:
        """Fetch this rank's part from a node's service into this process's own memory.

        Raises:
            ServiceError: it cannot be fetched; the message says why.
        """
        try:
            answer = self._client.ask(
                "pull",
                timeout_s=PULL_S,
                generation=asdict(whole.generation),
                step=whole.step,
                node=node,
            )
        except ConnectionError as error:
            raise ServiceError(f"the checkpoint service: {error}") from error
        plain, (fd,) = answer["snapshot"], answer["fds"]
        arena = Arena.attach(fd)
        found = load_held_snapshot({**plain, "state": REPLICA})
        return PulledSnapshot(
            LeftoverArena(arena, 1, arena.size), found, load_snapshot_metadata(plain)
        )

    def save_for_lost_nodes(self, whole: CompleteSnapshot) -> None:
        """Make this node's service write the replicas of that generation that it holds for lost
        nodes."""
        if self._ring is None:
            return
        try:
            self._client.ask("adopt", generation=asdict(whole.generation))
        except (ConnectionError, ServiceError) as error:
            logger.warning("the replicas held for other nodes cannot be written: %s", error)

    def _listen(self) -> PeerEndpoint:
        ranks = self._ranks
        mine = network_location()
        standings = ranks.all_gather(mine, ranks.control)
        try:
            address = choose_address(standings, ranks.rank)
            answer = self._client.ask("listen", address=address, port=0)
        except (ConnectionError, ServiceError) as error:
            return PeerEndpoint(mine, problem=f"rank {ranks.rank}: {error}")
        return PeerEndpoint(mine, answer["address"], answer["port"])

    def _send_ring(self) -> str | None:
        """Send the ring to this node's service. Returns what went wrong, or None."""
        ring = self._ring
        assert ring is not None
        try:
            give_back(self._client.ask("ring", **dump_ring(ring)))
        except (ConnectionError, ServiceError) as error:
            return f"rank {self._ranks.rank}: {error}"
        self._client.introduce = introduction(ring)
        return None


def check_replica_count(replicas: int, staging: str) -> None:
    """Check the number of replicas.

    Raises:
        ValueError: there cannot be that many.
    """
    if isinstance(replicas, bool) or replicas not in (0, MOST):
        raise ValueError(f"replicas must be 0 or {MOST}, got {replicas!r}")
    if replicas and staging != "slots":
        raise ValueError(
            f"replicas={replicas} needs staging='slots': with staging through {staging}, no "
            "snapshot stays in memory that could be replicated"
        )


def why_not(endpoints: Sequence[PeerEndpoint]) -> str | None:
    """Returns why the services of these ranks cannot connect to each other, or None if they can; a
    pure function."""
    problems = [one.problem for one in endpoints if one.problem]
    return first_reasons(problems) or None


def ring_of(endpoints: Sequence[PeerEndpoint], rank: int) -> tuple[tuple[RingNode, ...], int]:
    """Returns the nodes in the order of their first ranks, and the position of this rank's node; a
    pure function."""
    ranks: dict[str, list[int]] = {}
    for number, one in enumerate(endpoints):
        ranks.setdefault(one.standing.node, []).append(number)
    nodes = tuple(
        RingNode(name, endpoints[those[0]].address, endpoints[those[0]].port, tuple(those))
        for name, those in ranks.items()
    )
    return nodes, list(ranks).index(endpoints[rank].standing.node)


def introduction(ring: ReplicationRing) -> Introduce:
    """Return a callback that sends a restarted service its place in the ring: the other nodes
    expect it at the address of the one before it."""

    def introduce(link: ServiceConnection) -> None:
        mine = ring.mine
        try:
            give_back(link.request("listen", address=mine.address, port=mine.port))
            give_back(link.request("ring", **dump_ring(ring)))
        # without replication, the rest of the service is still useful
        except ServiceError as error:
            logger.error("this node's snapshots are no longer replicated: %s", error)

    return introduce
