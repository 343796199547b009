"""The rendezvous of the torchruns of a generation, which is a barrier of known nodes in a fixed
order.

torchrun's own rendezvous (c10d) finds out which nodes there are, and polls its store once a second.
Here the supervisor has chosen the nodes and watches them. A node is therefore notified when the
last one has joined, and has the same ranks in every round until a node is lost.
"""

from __future__ import annotations

import os
from datetime import timedelta

from torch.distributed import DistError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from hpckit.ipc.process_environment import STORE_TOKEN
from hpckit.ipc.rendezvous_names import participant_name
from hpckit.torch_internals import parse_rendezvous_endpoint
from hpckit.trainer.torchrun.free_port import free_port
from hpckit.trainer.torchrun.rendezvous_store_client import RendezvousStoreClient, StoreConnection

BACKEND = "hpckit"
_JOINED, _COMPLETE = "joined", "complete"


class KnownNodesRendezvous(RendezvousHandler):
    """A rendezvous handler for known nodes. Its first round is the start of the workers, and each
    later round is a restart of all of them."""

    def __init__(
        self,
        connection: StoreConnection,
        run_id: str,
        place: int,
        nodes: int,
        address: str,
        within: timedelta,
    ) -> None:
        """Args:
        connection: the connection to the supervisor's store.
        run_id: an id that no other generation has.
        place: the number of this node among `nodes`.
        address: the address by which other nodes reach this node.
        within: the timeout within which all nodes have to join, and the default timeout of the
            store of a round.
        """
        self._connection, self._run_id = connection, run_id
        self._place, self._nodes, self._address = place, nodes, address
        self._within = within
        self._round = 0
        self._next_began = 0  # the request that is answered when the next round begins

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until all nodes have joined the next round.

        Raises:
            RendezvousConnectionError: a node does not join in time, or the store is gone.
            OSError: there is no port for the workers' store.
        """
        self._round += 1
        store = self._store_of_round(self._round)
        try:
            if store.add(_JOINED, 1) == self._nodes:
                store.set(_COMPLETE, "")
            store.wait([_COMPLETE])
            port = free_port() if self._place == 0 else None
            meet = RendezvousStoreInfo.build(self._place, store, self._address, port)
            self._next_began = self._store_of_round(self._round + 1).expect([_JOINED])
        except DistError as error:
            raise RendezvousConnectionError(f"round {self._round}: {error}") from error
        return RendezvousInfo(store, self._place, self._nodes, meet)

    def num_nodes_waiting(self) -> int:
        """Return 1 if workers have failed on another node, so that the workers of this node have to
        restart too; else 0.

        Raises:
            RendezvousConnectionError: the store is gone.
        """
        try:
            return int(self._connection.is_answered(self._next_began))
        except DistError as error:
            raise RendezvousConnectionError(str(error)) from error

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Do nothing, since the supervisor decides when a generation ends."""

    def shutdown(self) -> bool:
        return True

    def _store_of_round(self, number: int) -> RendezvousStoreClient:
        return RendezvousStoreClient(self._connection, f"{self._run_id}/{number}/", self._within)


def register() -> None:
    """Register the handler with torchrun under the name `BACKEND`."""
    rendezvous_handler_registry.register(BACKEND, _create)


def _create(given: RendezvousParameters) -> KnownNodesRendezvous:
    """Return the handler, and remove the token from the environment, which workers inherit."""
    host, port = parse_rendezvous_endpoint(given.endpoint, -1)
    within = timedelta(seconds=float(given.config["join_timeout"]))
    connection = StoreConnection(host, port, os.environ.pop(STORE_TOKEN))
    assert given.local_addr is not None
    place = int(given.config["place"])
    connection.ask(do="name", name=participant_name(given.run_id, place))
    return KnownNodesRendezvous(
        connection, given.run_id, place, given.max_nodes, given.local_addr, within
    )
