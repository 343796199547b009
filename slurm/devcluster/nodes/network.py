"""The networks of the namespaces form: a bridge for each cluster, a cable for each node."""

from __future__ import annotations

import ipaddress
import json
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from slurm.devcluster.daemons.program_launcher import Launcher
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.nodes import cgroups
from slurm.devcluster.plan import ClusterPlan, Network, NodePlan, first_number

_COUNT = 250  # of networks; the third byte of an address
_TABLE = "hpckit"  # of rules that lose packets
_LINKS = Path("/sys/class/net")


def free_networks(launcher: Launcher) -> Iterable[Network]:
    """Yields networks without a route, a bridge or cgroups of nodes on this machine."""
    routes = json.loads(launcher.run("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    used = [_destination(route.get("dst", "default")) for route in routes]
    for number in range(_COUNT):
        network = Network(number, _mac())
        addresses = ipaddress.ip_network(f"{network.address(0)}/24")
        is_led_to = any(route.overlaps(addresses) for route in used if route is not None)
        is_tracked = cgroups.of_node(f"n{first_number(network) + 1}")
        if not is_led_to and not is_tracked and not (_LINKS / network.bridge).exists():
            yield network


def claim(launcher: Launcher, announce: Callable[[Network], object]) -> Network:
    """Creates the bridge of a free network, which reserves the network for this cluster.

    Args:
        announce: called with a network before anything of it is made.

    Raises:
        DevclusterError: none is free, or this machine makes no bridges.
    """
    refused = ""
    for network in free_networks(launcher):
        announce(network)
        try:
            make = ("ip", "link", "add", "name", network.bridge, "address", network.mac)
            launcher.run(*make, "type", "bridge")
        except DevclusterError as error:
            if not (_LINKS / network.bridge).exists():
                raise
            refused = str(error)  # another cluster was faster
            continue
        launcher.run("ip", "addr", "add", f"{network.gateway}/24", "dev", network.bridge)
        launcher.run("ip", "link", "set", network.bridge, "up")
        return network
    raise DevclusterError(
        f"all networks from 10.213.0.0/24 to 10.213.{_COUNT - 1}.0/24 are in use: take a cluster "
        f"down, or take the ports form. {refused}".rstrip()
    )


def remove(launcher: Launcher, plan: ClusterPlan) -> None:
    """Removes the cables and the bridge of the cluster, if they exist."""
    network = plan.network
    if network is None or not _is_own(network):
        return
    for node in plan.nodes:
        unplug(launcher, plan, node)
    launcher.run("ip", "link", "del", network.bridge)


def plug(launcher: Launcher, plan: ClusterPlan, node: NodePlan, pid: int) -> None:
    """Connects the bridge by a cable to the node whose first process is `pid`."""
    link, network = plan.link(node), plan.network
    if link is None or network is None:
        return
    # the same address each time: others still know the one of the node that was killed
    mac = f"02:00:0a:d5:{network.number:02x}:{node.index:02x}"
    peer = ("type", "veth", "peer", "name", "eth0", "address", mac, "netns", str(pid))
    launcher.run("ip", "link", "add", "name", link, *peer)
    launcher.run("ip", "link", "set", link, "master", network.bridge, "up")


def unplug(launcher: Launcher, plan: ClusterPlan, node: NodePlan) -> None:
    """Removes the cable: a connection that is not closed keeps a dead node's network alive.

    Raises:
        DevclusterError: it is still there.
    """
    link = plan.link(node)
    if link is None or not has_link(link) or launcher.attempt("ip", "link", "del", link) == "":
        return
    if has_link(link):  # otherwise the kernel has removed it with its network
        raise DevclusterError(f"the network cable {link} cannot be removed: try ip link del {link}")


def switch(launcher: Launcher, link: str, state: str) -> None:
    """
    Args:
        link: this machine's end of a cable.
        state: "up" or "down".

    Raises:
        DevclusterError: there is no such cable.
    """
    if not has_link(link):
        raise DevclusterError(f"no cable {link}: its node is not up; start the node")
    launcher.run("ip", "link", "set", link, state)


def lose(launcher: Launcher, pid: int, percent: int) -> None:
    """Drops this percentage of the packets to and from the network of `pid`."""
    some = f"!= lo numgen random mod 100 < {percent}"
    _drop(launcher, pid, arriving=f"meta iif {some}", leaving=f"meta oif {some}")


def part(launcher: Launcher, pid: int, address: str) -> None:
    """Drops all packets between the network of `pid` and this address, and no others."""
    _drop(launcher, pid, arriving=f"ip saddr {address}", leaving=f"ip daddr {address}")


def _drop(launcher: Launcher, pid: int, arriving: str, leaving: str) -> None:
    """Drops the packets that match, in place of those that were dropped before."""
    chains = (
        f"add chain inet {_TABLE} {way} {{ type filter hook {way} priority 0; }}; "
        f"add rule inet {_TABLE} {way} {which} drop"
        for way, which in (("input", arriving), ("output", leaving))
    )
    lose_none(launcher, pid)
    launcher.run(*_inside(pid), "nft", f"add table inet {_TABLE}; {'; '.join(chains)}")


def lose_none(launcher: Launcher, pid: int) -> None:
    """Drops no packets, whether or not some were dropped before."""
    table = f"inet {_TABLE}"
    launcher.run(*_inside(pid), "nft", f"add table {table}; delete table {table}")


def leads(launcher: Launcher, pid: int, node: NodePlan) -> bool:
    """Returns whether a process with the network of `pid` reaches this node's slurmd."""
    connect = "import socket, sys; socket.create_connection((sys.argv[1], sys.argv[2]), timeout=3)"
    program = (sys.executable, "-I", "-S", "-c", connect, node.address, str(node.port))
    return launcher.attempt(*_inside(pid), *program) is not None


def has_link(link: str) -> bool:
    return (_LINKS / link).exists()


def is_switched_off(link: str) -> bool:
    try:
        return not int((_LINKS / link / "flags").read_text(), 16) & 1  # IFF_UP
    except FileNotFoundError:
        return False


def _inside(pid: int) -> tuple[str, ...]:
    return ("nsenter", f"--target={pid}", "--net", "--")


def _is_own(network: Network) -> bool:
    try:
        return (_LINKS / network.bridge / "address").read_text().strip() == network.mac
    except FileNotFoundError:
        return False


def _destination(text: str) -> ipaddress.IPv4Network | None:
    return None if text == "default" else ipaddress.IPv4Network(text, strict=False)


def _mac() -> str:
    return "02:" + ":".join(f"{random.randrange(256):02x}" for _ in range(5))
