"""Announces a replication ring to a service that replaces one that died."""

from __future__ import annotations

import logging

from checkpointing.errors import ServiceError
from checkpointing.service.client.service_connection import Introduce, ServiceConnection, give_back
from checkpointing.service.replication.replication_ring import ReplicationRing, dump_ring

logger = logging.getLogger("checkpointing")


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
            logger.error("this node's snapshots are replicated no longer: %s", error)

    return introduce
