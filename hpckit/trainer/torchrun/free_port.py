"""Choice of a port that another process will listen on later, as the workers' store of a round
does."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LEAST = 20_000
"""The lowest port to choose: known services are below it. torchrun's own, 29500, is above, too."""
_TRIES = 100
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """Return a port on which nothing listens now, outside of the kernel's range of ephemeral ports.

    An ephemeral port could be taken by any connection that is made meanwhile. Where a site leaves
    no other ports, the kernel chooses one. Raises OSError if there is none.
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
    """Return the first ephemeral port, see ip(7)."""
    return int(_EPHEMERAL.read_text().split()[0])


def _bound(port: int) -> int | None:
    """Return `port`, or for 0 the kernel's choice, if it can be bound on all addresses."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
