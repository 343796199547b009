"""The plan of a cluster, made before the cluster exists; kept as cluster.json."""

from __future__ import annotations

import errno
import ipaddress
import json
import os
import pwd
import random
import socket
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm.devcluster import tools
from slurm.devcluster.errors import DevclusterError
from slurm.devcluster.options import MAX_NODES, ClusterOptions

_MOST_RESERVED = MAX_NODES + 2
_reserved: deque[socket.socket] = deque()


@dataclass(frozen=True)
class Network:
    """A bridge of this machine with a network behind it, for root only."""

    number: int  # which of the networks that clusters may have
    mac: str  # of the bridge; says that it is this cluster's

    @property
    def bridge(self) -> str:
        return f"hpckit{self.number}"

    def address(self, host: int) -> str:
        return f"10.213.{self.number}.{host}"

    @property
    def gateway(self) -> str:
        """Returns this machine's address in the network."""
        return self.address(254)


@dataclass(frozen=True)
class NodePlan:
    index: int  # from 1
    name: str
    address: str
    port: int  # of slurmd


@dataclass(frozen=True)
class ClusterPlan:
    """The plan of a cluster."""

    options: ClusterOptions
    user: str
    hostname: str
    version: tuple[int, int]  # of Slurm
    memory_mib: int  # of each node
    has_cgroups: bool  # jobs' processes are tracked by cgroups
    controller_port: int
    accounting_port: int
    nodes: tuple[NodePlan, ...]
    loopback: str | None  # see `loopback_address`
    network: Network | None  # None: the ports form

    @property
    def controller_address(self) -> str:
        """Returns the address of the daemons that a cluster has once."""
        return self.network.gateway if self.network else self.loopback or "127.0.0.1"

    def node(self, name: str) -> NodePlan:
        """Raises:
        DevclusterError: no node has this name.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        names = f"{self.nodes[0].name} to {self.nodes[-1].name}"
        raise DevclusterError(f"no node {name!r} in this cluster: they are {names}")

    def link(self, node: NodePlan) -> str | None:
        """Returns the name of this machine's end of the node's network cable, if it has one."""
        return f"{self.network.bridge}n{node.index}" if self.network else None

    def write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1) + "\n")
        new.replace(path)

    @classmethod
    def read(cls, path: Path) -> ClusterPlan:
        """Raises:
        DevclusterError: there is none, or it is not of this version.
        """
        try:
            return _plan(json.loads(path.read_text()))
        except FileNotFoundError as error:
            raise DevclusterError(f"no cluster in {path.parent}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise DevclusterError(
                f"{path} does not describe a cluster of this version ({error!r}): take it down "
                "with the version that made it"
            ) from error


def make_plan(options: ClusterOptions, network: Network | None, has_cgroups: bool) -> ClusterPlan:
    """Makes a plan with ports that are free now.

    Args:
        network: in the namespaces form.

    Raises:
        DevclusterError: the user has no name.
    """
    ports = free_ports(2 + options.nodes)
    hostname = socket.gethostname()
    own = loopback_address(hostname)
    return ClusterPlan(
        options=options,
        user=user_name(os.geteuid()),
        hostname=hostname.partition(".")[0],
        version=tools.version_of(options.slurm),
        memory_mib=options.memory_mib or _machine_memory_mib(),
        has_cgroups=has_cgroups,
        controller_port=ports[0],
        accounting_port=ports[1],
        nodes=tuple(
            NodePlan(
                index,
                f"n{first_number(network) + index}",
                network.address(index) if network else own or "127.0.0.1",
                ports[2] if network else ports[1 + index],
            )
            for index in range(1, options.nodes + 1)
        ),
        loopback=own,
        network=network,
    )


def first_number(network: Network | None) -> int:
    """Before the number of the first node. Cgroups are named after nodes: in the namespaces form
    no two clusters of a machine have nodes of the same name."""
    return (MAX_NODES + 1) * network.number if network else 0


def user_name(uid: int) -> str:
    """Raises:
    DevclusterError: it has none.
    """
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError as error:
        raise DevclusterError(
            f"user {uid} has no name on this machine, and Slurm needs one: add it to /etc/passwd, "
            "or take another user"
        ) from error


def loopback_address(hostname: str) -> str | None:
    """The address that this machine gives its own name, if it is one of loopback: the only one on
    which Slurm's daemons can be told to listen."""
    try:
        address = socket.gethostbyname(hostname)
    except OSError:
        return None
    return address if ipaddress.ip_address(address).is_loopback else None


def free_ports(count: int) -> list[int]:
    """Returns unused TCP ports, below those that the kernel assigns to connections.

    The newest are reserved until this process ends: no other process of this machine gets them
    here, or from hpckit for a run, before the daemons listen on them.
    """
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        if _is_free(port) and _reserve(port):
            ports.append(port)
    return ports


def _reserve(port: int) -> bool:
    """As `hpckit.trainer.torchrun.free_port` does: whether no process had reserved it."""
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0hpckit-port-{port}")
    except OSError as error:
        reservation.close()
        return error.errno != errno.EADDRINUSE
    _reserved.append(reservation)
    if len(_reserved) > _MOST_RESERVED:
        _reserved.popleft().close()
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _machine_memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20


def _plan(found: dict[str, Any]) -> ClusterPlan:
    options = found["options"]
    nodes: Iterable[dict[str, Any]] = found["nodes"]
    network = found["network"]
    return ClusterPlan(
        **found
        | {
            "options": ClusterOptions(
                **options | {name: tuple(options[name]) for name in ("settings", "private")}
            ),
            "version": tuple(found["version"]),
            "nodes": tuple(NodePlan(**node) for node in nodes),
            "network": Network(**network) if network else None,
        }
    )
