"""Serves the services of other nodes: keeps their replicas, and returns snapshots."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from checkpointing.authenticated_channel import (
    CHUNK,
    AuthenticatedChannel,
    ChannelHello,
    PeerGaveUpError,
)
from checkpointing.channel_listener import ChannelListener
from checkpointing.errors import CheckpointError, ServiceError
from checkpointing.service.protocol.messages import (
    dump_layout,
    dump_snapshot,
    load_generation,
    load_layout,
    load_snapshot,
)
from checkpointing.service.registry.snapshot_registry import SnapshotRegistry
from checkpointing.service.replication.kept_replicas import (
    IncomingReplica,
    KeptReplicas,
    ReplicaOrigin,
)
from checkpointing.service.replication.replica_sender import send_in_frames
from checkpointing.service.replication.replication_ring import ReplicationRing
from checkpointing.service.snapshots import Generation, RankSnapshot, SnapshotLayout

logger = logging.getLogger("checkpointing")


class TransferRefusedError(ServiceError):
    """What the other side sends is not needed any more; only closing the connection stops it."""


class PeerRegistry(Protocol):
    """Knows which nodes may connect."""

    def ring_of(self, generation: str) -> ReplicationRing | None: ...

    def arrived(self, origin: ReplicaOrigin, connection: ConnectionHandler) -> None: ...

    def left(
        self, origin: ReplicaOrigin, connection: ConnectionHandler, *, goodbye: bool
    ) -> None: ...


@dataclass
class PeerStatistics:
    """Counters of the peer server."""

    refused: int = 0  # connections that were refused, or that broke off
    served: int = 0  # snapshots that were returned


class PeerServer:
    """Listens on a port of its own until it is closed."""

    def __init__(
        self,
        address: str,
        port: int,
        snapshot_registry: SnapshotRegistry,
        replicas: KeptReplicas,
        registry: PeerRegistry,
    ) -> None:
        """Start to listen.

        Args:
            port: the wanted port; another one is used if it is taken. 0: any.

        Raises:
            ServiceError: nobody can listen at this address.
        """
        listening = _listening(address, port)
        self.address, self.port = address, int(listening.getsockname()[1])
        self.snapshots, self.replicas, self.registry = snapshot_registry, replicas, registry
        self.peer_statistics = PeerStatistics()
        self._listener = ChannelListener(
            listening, self._key_of, self._serve, name="peers", refuse=self._refuse
        )
        self._listener.start()

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._listener.close()

    def _refuse(self) -> None:
        self.peer_statistics.refused += 1

    def _serve(self, channel: AuthenticatedChannel, hello: ChannelHello) -> None:
        ConnectionHandler(self, channel, hello).serve()

    def _key_of(self, hello: ChannelHello) -> bytes | None:
        ring = self.registry.ring_of(hello.generation)
        if ring is None or hello.to != ring.me or not 0 <= hello.node < len(ring.nodes):
            return None
        return ring.key if hello.role in ("origin", "pull") and hello.node != ring.me else None


class ConnectionHandler:
    """One connection from another node's service."""

    def __init__(self, host: PeerServer, link: AuthenticatedChannel, hello: ChannelHello) -> None:
        self._host, self._link, self._role = host, link, hello.role
        ring = host.registry.ring_of(hello.generation)
        if ring is None:
            raise ServiceError(f"generation {hello.generation} is over")
        self.origin = ReplicaOrigin(ring.generation, ring.nodes[hello.node])
        self._layouts: dict[str, SnapshotLayout] = {}
        self._is_goodbye = False
        self._answers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "ping": lambda message: {},
            "put": self._put,
            "durable": self._durable,
            "goodbye": self._goodbye,
            "pull": self._pull,
        }

    def hang_up(self) -> None:
        self._link.hang_up()

    def serve(self) -> None:
        """Serve requests until the other side is gone."""
        if self._role == "origin":
            self._host.registry.arrived(self.origin, self)
        try:
            while not self._is_goodbye:
                self._answer(self._link.receive())
        except ConnectionError as error:
            level = logging.INFO if self._role == "pull" else logging.WARNING
            logger.log(level, "node %s: %s", self.origin.node.name, error)
        except CheckpointError as error:
            logger.warning("node %s is refused: %s", self.origin.node.name, error)
            self._host.peer_statistics.refused += 1
        finally:
            if self._role == "origin":
                self._host.registry.left(self.origin, self, goodbye=self._is_goodbye)

    def _answer(self, message: dict[str, Any]) -> None:
        op = message.get("op")
        try:
            if not isinstance(op, str) or op not in self._answers:
                raise ServiceError(f"this service does not know the operation {op!r}")
            answer = self._answers[op](message)
        except TransferRefusedError:
            raise
        except (KeyError, TypeError, ValueError, CheckpointError) as error:
            logger.warning("node %s: %s: %r", self.origin.node.name, op, error)
            why = str(error) if isinstance(error, CheckpointError) else repr(error)
            answer = {"refused": why}
        self._link.send(answer)

    def _put(self, message: dict[str, Any]) -> dict[str, Any]:
        if "layout" in message:
            layout = load_layout(message["layout"])
            self._layouts = {layout.digest: layout, **dict(list(self._layouts.items())[:63])}
        snapshot = load_snapshot(message["snapshot"], self._layouts)
        filling = self._host.replicas.begin(self.origin, snapshot)
        if filling is None:
            return {"have": True}
        self._link.send({})
        try:
            return self._fill(filling)
        finally:
            self._host.replicas.abort(filling)

    def _fill(self, filling: IncomingReplica) -> dict[str, Any]:
        at, end = 0, filling.snapshot.layout.end
        while at < end:
            try:
                data = self._link.receive_bytes()
            except PeerGaveUpError as error:
                return {"given_up": str(error)}
            try:
                self._host.replicas.write(filling, at, data)
            except CheckpointError as error:
                # The rest of the snapshot is under way, so that an answer could not be matched to a
                # request.
                raise TransferRefusedError(str(error)) from error
            at += len(data)
        self._host.replicas.end(filling)
        return {}

    def _durable(self, message: dict[str, Any]) -> dict[str, Any]:
        self._host.replicas.settled(self.origin.generation, int(message["step"]))
        return {}

    def _goodbye(self, message: dict[str, Any]) -> dict[str, Any]:
        self._is_goodbye = True
        return {}

    def _pull(self, message: dict[str, Any]) -> dict[str, Any]:
        generation = load_generation(message["generation"])
        rank, step = int(message["rank"]), int(message["step"])
        with ExitStack() as stack:
            found = find(self._host.snapshots, self._host.replicas, generation, rank, step, stack)
            if found is None:
                raise ServiceError(f"step {step} of rank {rank} is not on this node")
            snapshot, cells, still = found
            answer = {"snapshot": dump_snapshot(snapshot), "layout": dump_layout(snapshot.layout)}
            self._link.send(answer)
            send_in_frames(self._link, snapshot, cells, CHUNK, still, lambda amount: None)
        self._host.peer_statistics.served += 1
        return {}


Still = Callable[[RankSnapshot], bool]


def find(
    snapshot_registry: SnapshotRegistry,
    replicas: KeptReplicas,
    generation: Generation,
    rank: int,
    step: int,
    stack: ExitStack,
) -> tuple[RankSnapshot, NDArray[np.uint8], Still] | None:
    """Find a snapshot that this node has, of a rank of its own or of another node.

    Args:
        stack: a replica does not change until this is closed.
    """
    own = snapshot_registry.look(generation, rank, step)
    if own is not None:
        return *own, snapshot_registry.still
    found = stack.enter_context(replicas.reading(generation, rank, step))
    return (*found, lambda snapshot: True) if found is not None else None


def _listening(address: str, port: int) -> socket.socket:
    for wanted in (port, 0):
        try:
            family, _, _, _, where = socket.getaddrinfo(
                address, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return socket.create_server((where[0], wanted), family=family, backlog=128)
        except OSError as error:
            if wanted == 0:
                raise ServiceError(
                    f"cannot listen at {address} for the services of other nodes: {error}; set "
                    "HPCKIT_PEER_ADDRESS to an address of this node that the others reach"
                ) from error
            logger.warning("port %d at %s is in use: another one is used", port, address)
    raise AssertionError("the loop has returned or raised")
