"""The shared caches of the nodes of a run (`data.cache_peers`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from checkpointing import ServiceError
from checkpointing.ranks.peer_address import (
    address_of_interface,
    choose_address,
    interface_addresses,
    network_location,
    node_name,
)
from checkpointing.ranks.rank_group import RankGroup
from data import CachePeers
from data.cache.peers.cache_peers import ALL_ADDRESSES
from hpckit.config.spec import RunSpec
from hpckit.events.schema import Degraded, DegradedSubject
from hpckit.trainer.rank_setup import RankContext

log = logging.getLogger(__name__)


def connect_caches(context: RankContext) -> CachePeers | None:
    """Connect the caches of the nodes of this generation, if `data.cache_peers` asks for it.
    Collective. If that fails, each node reads from the source, and the event "degraded" says why.
    """
    cfg = context.cfg
    if not cfg.data.cache_peers or cfg.data.cache is None:
        return None
    with closing(RankGroup()) as ranks:
        peers, nodes = _connect(cfg, ranks, context.env.rank)
    if peers.problem is not None and nodes > 1:
        what = f"nodes do not share their caches: {peers.problem}"
        context.emit_once(Degraded(subject=DegradedSubject.CACHE_PEERS, what=what))
    return peers


def _connect(cfg: RunSpec, ranks: RankGroup, rank: int) -> tuple[CachePeers, int]:
    """Return the connected caches, and of how many nodes."""
    assert cfg.data.cache is not None

    def exchange(value: Any) -> Sequence[Any]:
        return ranks.all_gather(value, ranks.control)

    locations = exchange(network_location())
    try:
        address: str | None = _address(cfg) or choose_address(locations, rank)
    except ServiceError as error:
        log.warning("%s", error)
        address = None
    if address in ALL_ADDRESSES:
        log.warning("address %r of this node stands for all network interfaces", address)
        address = None
    peers = CachePeers.connect(cfg.data.cache, exchange, address=address, node=node_name())
    return peers, len({one.node for one in locations})


def _address(cfg: RunSpec) -> str | None:
    """Return this node's address on `cluster.slurm.interface`; None if the spec names none, or
    HPCKIT_PEER_ADDRESS is set."""
    slurm = cfg.cluster.slurm
    if slurm is None or slurm.interface is None or network_location().configured is not None:
        return None
    # the name of an interface is no address, so that the problem names it
    return address_of_interface(slurm.interface, interface_addresses()) or slurm.interface
