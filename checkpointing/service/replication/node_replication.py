"""The replication of a node: it sends snapshots to the next node of the ring, keeps those that the
node before it sends, returns them on request, and saves for a node that is lost."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from checkpointing.authenticated_channel import connect_channel, new_hello
from checkpointing.errors import ServiceError
from checkpointing.service.config import ServiceConfig
from checkpointing.service.protocol.messages import load_layout, load_snapshot
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.replication.kept_replicas import (
    KeptReplicas,
    ReplicaOrigin,
    allocate_arena,
)
from checkpointing.service.replication.peer_server import ConnectionHandler, PeerServer, find
from checkpointing.service.replication.replica_sender import ACCEPT_S, ReplicaSender
from checkpointing.service.replication.replication_ring import ReplicationRing
from checkpointing.service.snapshots import Generation, RankSnapshot
from checkpointing.staging.arena import Arena
from checkpointing.staging.slot_layout import PAGE, round_up

logger = logging.getLogger("checkpointing")

MOST_RINGS = 4  # number of generations, the newest ones, whose keys are known
_WATCH_S = 0.25


class NodeReplication:
    """Replication as one node takes part in it. Thread-safe. Does nothing before the first
    `join`."""

    def __init__(self, registry: SnapshotRegistry, config: ServiceConfig) -> None:
        self._registry, self._config = registry, config
        self.replicas = KeptReplicas()
        self._host: PeerServer | None = None
        self._rings: dict[str, ReplicationRing] = {}  # by generation, the newest last
        self._sender: ReplicaSender | None = None
        self._connections: dict[ReplicaOrigin, ConnectionHandler] = {}
        self._lost: dict[ReplicaOrigin, float] = {}  # monotonic time since when each node is lost
        self._saved_ranks: dict[
            ReplicaOrigin, int
        ] = {}  # number of ranks for which this node saves
        self.taken_over = 0  # number of ranks in total
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None
        registry.holds_replicas = lambda: bool(self.replicas.origins())

    def listen(self, address: str, port: int = 0) -> tuple[str, int]:
        """Listen for other nodes, at this port if it is free; return the address and port, which
        stay the same after the first call.

        Raises:
            ServiceError: nobody can listen there.
        """
        with self._lock:
            if self._host is None:
                self._host = PeerServer(address, port, self._registry, self.replicas, self)
                self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
                self._watcher.start()
            return self._host.address, self._host.port

    def join(self, ring: ReplicationRing) -> None:
        """Replicate as a member of this ring from now on; a second call with it does nothing."""
        with self._lock:
            if ring.generation.id in self._rings:
                return
            self._rings[ring.generation.id] = ring
            for old in list(self._rings)[:-MOST_RINGS]:
                del self._rings[old]
            before, self._sender = self._sender, None
            if ring.next is not None:
                rate = self._config.budget.peer_bytes_per_s
                self._sender = ReplicaSender(self._registry, ring, rate)
                self._sender.start()
        if before is not None:
            before.stop(goodbye=False, within_s=0.0)

    def pull(
        self, generation: Generation, rank: int, step: int, node: int
    ) -> tuple[RankSnapshot, Arena]:
        """Return a snapshot of a node of the newest ring, at the start of memory of its own.

        Raises:
            ConnectionError: that node is gone.
            ServiceError: it does not have the snapshot, or there is no memory for it here.
        """
        ring = self._newest()
        if ring is None or not 0 <= node < len(ring.nodes):
            raise ServiceError(f"step {step} of rank {rank}: there is no node {node} to ask for it")
        if node == ring.me:
            return self._copy(generation, rank, step)
        there = ring.nodes[node]
        link = connect_channel(
            there.address,
            there.port,
            ring.key,
            new_hello(ring.generation.id, ring.me, node, "pull"),
        )
        try:
            link.set_timeout(ACCEPT_S)
            asked = {"generation": asdict(generation), "rank": rank, "step": step}
            answer = link.ask({"op": "pull", **asked})
            layout = load_layout(answer["layout"])
            snapshot = load_snapshot(answer["snapshot"], {layout.digest: layout})
            if (snapshot.generation, snapshot.rank, snapshot.step) != (generation, rank, step):
                raise ServiceError(
                    f"node {there.name} has sent another snapshot than was requested"
                )
            arena = _memory_for(snapshot)
            try:
                at = 0
                while at < layout.end:
                    data = link.receive_bytes()
                    arena.view(at, len(data))[:] = np.frombuffer(data, np.uint8)
                    at += len(data)
                link.receive()
            except (ValueError, ConnectionError, ServiceError) as error:
                arena.close()
                if isinstance(error, ValueError):
                    raise ServiceError(
                        f"node {there.name} sends more bytes than it stated"
                    ) from error
                raise
        finally:
            link.close()
        return replace(snapshot, slot=0), arena

    def save_lost_ranks(self, generation: Generation) -> None:
        """Save what this node keeps of a generation's lost ranks, as if it were its own."""
        with self._lock:
            there = set(self._connections)
        for origin in self.replicas.origins() - there:
            if origin.generation == generation:
                self._save_replicas(origin)

    def save_all_lost_nodes(self) -> None:
        """Save the replicas of all nodes that are absent, because this one is about to end."""
        with self._lock:
            there = set(self._connections)
        for origin in self.replicas.origins() - there:
            self._save_replicas(origin)

    def resume(self, generation: Generation) -> None:
        """Record that the generation continues from what it has restored, so that what earlier ones
        left may be dropped."""
        origins = self.replicas.origins()
        self.replicas.forget(one for one in origins if one.generation != generation)
        with self._lock:
            for known in (self._lost, self._saved_ranks):
                for origin in [one for one in known if one.generation != generation]:
                    del known[origin]

    def close(self, *, goodbye: bool) -> None:
        """End replication.

        Args:
            goodbye: nothing that others hold for this node is needed any more.
        """
        self._stop.set()
        with self._lock:
            sender, self._sender = self._sender, None
            host, watcher = self._host, self._watcher
        if sender is not None:
            sender.stop(goodbye=goodbye)
        if host is not None:
            host.close()
        if watcher is not None:
            watcher.join(1.0)
        self.replicas.forget(self.replicas.origins())

    def status(self) -> dict[str, Any] | None:
        """Return plain data; None if this node does not replicate."""
        with self._lock:
            host, sender, connections = self._host, self._sender, list(self._connections)
        if host is None:
            return None
        return {
            "address": f"{host.address}:{host.port}",
            "held": self.replicas.status(),
            "from": sorted(origin.node.name for origin in connections),
            "received": self.replicas.received,
            "no_room": self.replicas.refused,
            "strangers": host.peer_statistics.refused,
            "served": host.peer_statistics.served,
            "taken_over": self.taken_over,
            "sent": sender.status() if sender is not None else None,
        }

    # --- for the peer server

    def ring_of(self, generation: str) -> ReplicationRing | None:
        with self._lock:
            return self._rings.get(generation)

    def arrived(self, origin: ReplicaOrigin, connection: ConnectionHandler) -> None:
        with self._lock:
            before = self._connections.pop(origin, None)
            self._connections[origin] = connection
            self._lost.pop(origin, None)
            was_saved_here = self._saved_ranks.pop(origin, 0)
        if before is not None:
            before.hang_up()
        if was_saved_here:
            logger.warning("node %s is back and saves its own snapshots", origin.node.name)
            self._registry.hand_back(origin.generation, frozenset(origin.node.ranks))

    def left(self, origin: ReplicaOrigin, connection: ConnectionHandler, *, goodbye: bool) -> None:
        with self._lock:
            if self._connections.get(origin) is not connection:
                return  # it is connected by another connection
            del self._connections[origin]
            if not goodbye:
                self._lost[origin] = time.monotonic()
        if goodbye:
            self.replicas.forget([origin])

    # --- of the thread

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            for origin in self._gone():
                self._save_replicas(origin)
            self._end_if_deserted()

    def _end_if_deserted(self) -> None:
        """End the service's part in rings whose trainers are gone, so that no peer holds, and waits
        for, what nobody needs."""
        with self._lock:
            sender = self._sender
            if sender is None or not self._registry.is_deserted(sender.ranks):
                return
            self._sender = None
        sender.stop(goodbye=True)

    def _gone(self) -> list[ReplicaOrigin]:
        """Return the nodes that are lost permanently. A node of an earlier generation than the
        newest may be needed by trainers that restore, until those are gone too."""
        limit_s, now_s = self._config.peer_gone_s, time.monotonic()
        is_alone, newest = self._registry.alone_s() > limit_s, self._newest()
        with self._lock:
            gone = [
                origin
                for origin, since_s in self._lost.items()
                if now_s - since_s > limit_s
                and (is_alone or (newest is not None and newest.generation == origin.generation))
            ]
            for origin in gone:
                del self._lost[origin]
        return gone

    def _save_replicas(self, origin: ReplicaOrigin) -> None:
        """Write what a lost node has not made durable."""
        name = origin.node.name
        for snapshots, arena_layout in self.replicas.take(origin):
            *older, newest = snapshots
            rank, steps = newest.rank, [one.step for one in snapshots]
            with self._lock:
                self._saved_ranks[origin] = self._saved_ranks.get(origin, 0) + 1
            if self._registry.install(newest, arena_layout, older, replaces_node=True):
                self.taken_over += 1
                logger.warning(
                    "node %s is lost: this node saves steps %s of rank %d", name, steps, rank
                )
            else:
                logger.error(
                    "node %s is lost, and steps %s of rank %d are discarded, because their memory "
                    "here is used",
                    name,
                    steps,
                    rank,
                )

        with self._lock:
            is_back = origin in self._connections and self._saved_ranks.pop(origin, 0) > 0
        if is_back:
            self._registry.hand_back(origin.generation, frozenset(origin.node.ranks))

    def _copy(self, generation: Generation, rank: int, step: int) -> tuple[RankSnapshot, Arena]:
        """Return a copy of a snapshot that is on this node."""
        with ExitStack() as stack:
            found = find(self._registry, self.replicas, generation, rank, step, stack)
            if found is None:
                raise ServiceError(f"step {step} of rank {rank} is not on this node")
            snapshot, cells, still = found
            arena, end = _memory_for(snapshot), snapshot.layout.end
            arena.view(0, end)[:] = cells[:end]
            if not still(snapshot):
                arena.close()
                raise ServiceError(f"step {step} of rank {rank} was replaced by a newer one")
        return replace(snapshot, slot=0), arena

    def _newest(self) -> ReplicationRing | None:
        with self._lock:
            return next(reversed(self._rings.values()), None)


def _memory_for(snapshot: RankSnapshot) -> Arena:
    slot_bytes = max(round_up(snapshot.layout.end, PAGE), PAGE)
    return allocate_arena(slot_bytes, 1, f"step {snapshot.step} of rank {snapshot.rank}")
