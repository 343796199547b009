"""A port for somebody who will listen on it later, as the workers' store of a round does."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LEAST = 20_000
"""Below are those that services are known to have; torchrun's own, 29500, is above, too."""
_TRIES = 100
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """One that nobody listens on now, of those that the kernel gives to no connection.

    Otherwise any connection that is made meanwhile may take it. Where a site leaves no such ports,
    the kernel chooses one. Raises OSError if there is none.
    """
    above = _first_ephemeral()
    for _ in range(_TRIES if above > _LEAST else 0):
        port = _bound(random.SystemRandom().randrange(_LEAST, above))
        if port is not None:
            return port
    port = _bound(0)
    if port is None:
        raise OSError("there is no free TCP port on this machine")
    return port


def _first_ephemeral() -> int:
    """ip(7): of the ports that are given to connections."""
    return int(_EPHEMERAL.read_text().split()[0])


def _bound(port: int) -> int | None:
    """`port`, or for 0 the kernel's choice, if it can be had on all addresses."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
