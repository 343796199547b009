"""Replicas of snapshots at other nodes, as the trainers arrange them, and get them back."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from checkpointing.errors import ServiceError
from checkpointing.events import Events
from checkpointing.ranks.peer_address import NetworkLocation, choose_address, network_location
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore.memory_restore import CompleteSnapshot
from checkpointing.service.client.held_snapshots import (
    REPLICA,
    HeldSnapshot,
    LeftoverArena,
    PulledSnapshot,
    load_held_snapshot,
    load_snapshot_metadata,
)
from checkpointing.service.client.ring_introduction import introduction
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.client.service_connection import give_back
from checkpointing.service.replication.authenticated_channel import KEY_BYTES
from checkpointing.service.replication.replication_ring import ReplicationRing, RingNode, dump_ring
from checkpointing.service.snapshots import Generation
from checkpointing.staging.arena import Arena

logger = logging.getLogger("checkpointing")

MOST = 1  # replicas of a snapshot
PULL_S = 1800.0  # in which a snapshot has to come from another node


@dataclass(frozen=True)
class PeerEndpoint:
    """Where a rank's service listens. Plain data: it travels between ranks."""

    standing: NetworkLocation
    address: str = ""
    port: int = 0
    problem: str | None = None


class PeerReplicas:
    """A rank's, for as long as its Checkpointer is there. `begin` is a collective."""

    def __init__(
        self, replicas: int, ranks: RankGroup, client: ServiceClient, events: Events
    ) -> None:
        self._is_wanted = replicas > 0
        self._ranks, self._client, self._events = ranks, client, events
        self._ring: ReplicationRing | None = None

    def begin(self, generation: Generation) -> None:
        """Let the services of this generation's nodes find each other. Where they cannot, training
        goes on without replicas: the log and the event "replication_off" say why."""
        ranks = self._ranks
        if not self._is_wanted:
            return
        everybody = ranks.all_gather(self._listen(), ranks.control)
        key = ranks.broadcast(secrets.token_bytes(KEY_BYTES), ranks.control)
        self._ring, why = None, why_not(everybody)
        if why is None:
            nodes, me = ring_of(everybody, ranks.rank)
            self._ring = ReplicationRing(generation, nodes, me, key)
            why = self._tell()
        problems = [one for one in ranks.all_gather(why, ranks.control) if one]
        if problems:
            self._ring = None
        elif len({one.standing.node for one in everybody}) == 1:
            # of one node, which may still hold what others have left with it
            problems = ["there is only one node: use replicas=0, or more nodes"]
        else:
            return
        self._events.emit("replication_off", reason=problems[0])
        if ranks.rank == 0:
            logger.warning("snapshots are not replicated: %s", problems[0])

    def source(
        self, gathered: Sequence[Sequence[HeldSnapshot]], whole: CompleteSnapshot, digest: str
    ) -> int | None:
        """The node that this rank's part can be had from, by its place in the ring; its own if that
        has it, None if there is none.

        Args:
            gathered: what each rank's node holds.
            digest: of the layout that it has to have.
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
        """This rank's part, from a node's service into memory of its own.

        Raises:
            ServiceError: it cannot be had; says why.
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

    def adopt(self, whole: CompleteSnapshot) -> None:
        """Have this node's service write what it holds of that generation for lost nodes."""
        if self._ring is None:
            return
        try:
            self._client.ask("adopt", generation=asdict(whole.generation))
        except (ConnectionError, ServiceError) as error:
            logger.warning("what is held for other nodes is not written: %s", error)

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

    def _tell(self) -> str | None:
        """What was wrong, if something was."""
        ring = self._ring
        assert ring is not None
        try:
            give_back(self._client.ask("ring", **dump_ring(ring)))
        except (ConnectionError, ServiceError) as error:
            return f"rank {self._ranks.rank}: {error}"
        self._client.introduce = introduction(ring)
        return None


def check_replica_count(replicas: int, staging: str) -> None:
    """Raises:
    ValueError: there cannot be so many.
    """
    if isinstance(replicas, bool) or replicas not in (0, MOST):
        raise ValueError(f"replicas is 0 or {MOST}, got {replicas!r}")
    if replicas and staging != "slots":
        raise ValueError(
            f"replicas={replicas} needs staging='slots': of what passes through {staging}, nothing "
            "lies in memory that could be replicated"
        )


def why_not(everybody: Sequence[PeerEndpoint]) -> str | None:
    """Why the services of these ranks cannot meet; None: they can. A pure function."""
    problems = [one.problem for one in everybody if one.problem]
    return "; ".join(problems) if problems else None


def ring_of(everybody: Sequence[PeerEndpoint], rank: int) -> tuple[tuple[RingNode, ...], int]:
    """The nodes in the order of their first ranks, and the place of a rank's own. A pure
    function."""
    ranks: dict[str, list[int]] = {}
    for number, one in enumerate(everybody):
        ranks.setdefault(one.standing.node, []).append(number)
    nodes = tuple(
        RingNode(name, everybody[those[0]].address, everybody[those[0]].port, tuple(those))
        for name, those in ranks.items()
    )
    return nodes, list(ranks).index(everybody[rank].standing.node)
