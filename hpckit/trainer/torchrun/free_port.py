"""The choice of a port on which another process will listen later, as the store of the workers
does."""

from __future__ import annotations

import errno
import random
import socket
from collections import deque
from pathlib import Path

_LEAST = 20_000
"""The lowest port that is chosen. Well-known services are below it; torchrun's default port, 29500,
is above."""
_TRIES = 100
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_MOST_RESERVED = 8
_reserved: deque[socket.socket] = deque()


def free_port() -> int:
    """Return a port on which no process listens, outside of the kernel's range of ephemeral ports.

    Any connection that is made meanwhile could take an ephemeral port. If a site has no other
    ports, the kernel chooses an ephemeral one. A worker listens on the port only once it has
    imported torch, so the port is reserved until this process ends: another process of this machine
    that calls this function does not get it.

    Raises:
        OSError: no port is free.
    """
    above = _first_ephemeral()
    for _ in range(_TRIES if above > _LEAST else 0):
        port = _bound(random.SystemRandom().randrange(_LEAST, above))
        if port is not None and _reserve(port):
            return port
    port = _bound(0)
    if port is None:
        raise OSError("there is no free TCP port on this machine")
    return port


def _reserve(port: int) -> bool:
    """Reserve a port, unless a process has reserved it.

    The reservation is an abstract Unix socket (unix(7)), of which the name is unique in the network
    namespace, and which the kernel removes with this process. The newest `_MOST_RESERVED` are kept.
    """
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0hpckit-port-{port}")
    except OSError as error:
        reservation.close()
        return error.errno != errno.EADDRINUSE  # or else there are no such names here
    _reserved.append(reservation)
    if len(_reserved) > _MOST_RESERVED:
        _reserved.popleft().close()
    return True


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
