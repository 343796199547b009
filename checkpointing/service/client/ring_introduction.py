"""A ring of nodes, said to a service that takes the place of one that died."""

from __future__ import annotations

import logging

from checkpointing.errors import ServiceError
from checkpointing.service.client.service_connection import Introduce, ServiceConnection, give_back
from checkpointing.service.replication.replication_ring import ReplicationRing, dump_ring

logger = logging.getLogger("checkpointing")


def introduction(ring: ReplicationRing) -> Introduce:
    """To be said to each such service: the other nodes expect it where the one before was."""

    def introduce(link: ServiceConnection) -> None:
        mine = ring.mine
        try:
            give_back(link.request("listen", address=mine.address, port=mine.port))
            give_back(link.request("ring", **dump_ring(ring)))
        except ServiceError as error:  # the rest of what it does is worth more
            logger.error("this node's snapshots are replicated no longer: %s", error)

    return introduce
