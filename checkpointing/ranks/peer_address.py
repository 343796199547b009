"""Names this node, and chooses the address at which other nodes reach it."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from checkpointing.errors import ServiceError

BOOT = Path("/proc/sys/kernel/random/boot_id")
VARIABLE = "HPCKIT_PEER_ADDRESS"
INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"
_NETWORK = Path("/proc/self/ns/net")


@dataclass(frozen=True)
class NetworkLocation:
    """Where a rank is in the network. Plain data, which is sent between ranks."""

    node: str
    network: str  # the same where processes share one loopback interface
    configured: str | None  # the address given by HPCKIT_PEER_ADDRESS
    routed: str | None  # this node's address on the interface that is set, or the route to rank 0's


def node_name() -> str:
    """Returns the name of this node, which is the same in all its processes and unique among nodes:
    HPCKIT_NODE where several nodes are simulated on one machine, else host name and boot id."""
    if name := os.environ.get("HPCKIT_NODE"):
        return name
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    return f"{socket.gethostname()}/{boot}"


def network_location() -> NetworkLocation:
    """Returns the network location of this process."""
    master = os.environ.get("MASTER_ADDR")
    configured = os.environ.get(VARIABLE) or None
    names = os.environ.get(INTERFACE)
    of_interface = address_of_interface(names, interface_addresses()) if names else None
    routed = of_interface or (route(master) if master else None)
    return NetworkLocation(node_name(), _network(), configured, routed)


def choose_address(standings: Sequence[NetworkLocation], rank: int) -> str:
    """Returns the address of a rank's node: the one that is set, or the one on its route to the
    others.

    Args:
        standings: the locations of all ranks.

    Raises:
        ServiceError: no address is known.
    """
    mine = standings[rank]
    if mine.configured is not None:
        return mine.configured
    if len({one.network for one in standings}) == 1:
        return LOOPBACK
    if mine.routed is not None:
        return mine.routed
    others = (one.configured or one.routed for one in standings if one.node != mine.node)
    found = next((way for other in others if other and (way := route(other))), None)
    if found is None:
        raise ServiceError(
            f"node {mine.node}: it has no known address at which other nodes reach it: set "
            f"{VARIABLE} to one on each node"
        )
    return found


def address_of_interface(names: str, addresses: Mapping[str, Sequence[str]]) -> str | None:
    """Return the address of the first interface whose name begins with one of `names`, as NCCL and
    Gloo choose it; None if there is none with an address.

    Args:
        names: beginnings of names, with commas.
        addresses: of each interface. IPv4 is preferred, and IPv6 addresses that are valid on one
            link alone are left out.
    """
    for name in names.split(","):
        for interface in sorted(addresses):
            if not interface.startswith(name):
                continue
            usable = [one for one in addresses[interface] if not _is_of_link(one)]
            usable.sort(key=lambda one: ":" in one)
            if usable:
                return usable[0]
    return None


def interface_addresses() -> dict[str, list[str]]:
    """Returns the addresses of each network interface of this machine."""
    import psutil  # it is seldom needed

    return {
        name: [one.address for one in all if one.family in (socket.AF_INET, socket.AF_INET6)]
        for name, all in psutil.net_if_addrs().items()
    }


def route(host: str) -> str | None:
    """Returns this machine's address on the route to another; None if there is no route, or only a
    loopback address. Sends nothing."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(where)
            address = str(sock.getsockname()[0])
    except (OSError, UnicodeError):  # the latter of a name of more than 63 letters without a dot
        return None
    return None if ipaddress.ip_address(address.split("%")[0]).is_loopback else address


def _network() -> str:
    try:
        return f"{BOOT.read_text().strip()}/{_NETWORK.readlink()}"
    except OSError:  # not Linux, or no /proc: then the network is taken as this process's alone
        return f"{socket.gethostname()}/{os.getpid()}"


def _is_of_link(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_link_local
