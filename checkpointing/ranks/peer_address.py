"""The address at which the services of other nodes reach this one's."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpointing.errors import ServiceError
from checkpointing.ranks.node_ranks import node_name

VARIABLE = "HPCKIT_PEER_ADDRESS"
LOOPBACK = "127.0.0.1"
_BOOT, _NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


@dataclass(frozen=True)
class NetworkLocation:
    """Where a rank is in the network. Plain data: it travels between ranks."""

    node: str
    network: str  # equal where one loopback interface is shared
    told: str | None  # by HPCKIT_PEER_ADDRESS
    routed: str | None  # this node's address, on the way to rank 0's


def network_location() -> NetworkLocation:
    """This process's."""
    master = os.environ.get("MASTER_ADDR")
    told = os.environ.get(VARIABLE) or None
    return NetworkLocation(node_name(), _network(), told, route(master) if master else None)


def choose_address(standings: Sequence[NetworkLocation], rank: int) -> str:
    """The address of a rank's node: as told, or that by which it reaches the others.

    Args:
        standings: of all ranks.

    Raises:
        ServiceError: none is known.
    """
    mine = standings[rank]
    if mine.told is not None:
        return mine.told
    if len({one.network for one in standings}) == 1:
        return LOOPBACK
    if mine.routed is not None:
        return mine.routed
    others = (one.told or one.routed for one in standings if one.node != mine.node)
    found = next((way for other in others if other and (way := route(other))), None)
    if found is None:
        raise ServiceError(
            f"node {mine.node}: no address is known by which other nodes reach it: set {VARIABLE} "
            "to one on each node"
        )
    return found


def route(host: str) -> str | None:
    """This machine's address on the way to another; None if there is no way, or a loopback alone.
    Nothing is sent."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(where)
            address = str(sock.getsockname()[0])
    except OSError:
        return None
    return None if ipaddress.ip_address(address.split("%")[0]).is_loopback else address


def _network() -> str:
    try:
        return f"{_BOOT.read_text().strip()}/{_NETWORK.readlink()}"
    except OSError:  # no Linux, or no /proc: then only this process is known to share it
        return f"{socket.gethostname()}/{os.getpid()}"
