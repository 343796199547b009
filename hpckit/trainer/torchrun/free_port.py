"""The choice of a port on which another process will listen later, as the store of the workers
does."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LEAST = 20_000
"""The lowest port that is chosen. Well-known services are below it; torchrun's default port, 29500,
is above."""
_TRIES = 100
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port on which no process listens, outside of the kernel's range of ephemeral ports.

    Any connection that is made meanwhile could take an ephemeral port. If a site has no other
    ports, the kernel chooses an ephemeral one.

    Raises:
        OSError: no port is free.
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
    """Return the first ephemeral port (ip(7))."""
    return int(_EPHEMERAL.read_text().split()[0])


def _bound(port: int) -> int | None:
    """Return `port`, or for 0 the port that the kernel chooses, if it can be bound on all
    addresses; else None."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
