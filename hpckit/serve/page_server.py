"""The HTTP server of the web view: where it listens, and how it is asked to end."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

import uvicorn

from hpckit.serve.access_rules import is_loopback
from hpckit.serve.http_application import ServerAccess, SiteApplication
from hpckit.serve.site import RunSite

_BACKLOG = 64
_MOST_REQUESTS = 512
"""Open connections, of which a browser keeps a few, beyond which the server answers that it is
busy."""
_IDLE_S = 30
_LAST_S = 3
"""Seconds that requests under way may take after the server is asked to end."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at one address of this machine.

    Args:
        port: 0: any free one.

    Raises:
        OSError: the name is unknown, the address is not of this machine, or the port is taken.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def access_of(listener: socket.socket, host: str, token: str) -> ServerAccess:
    """Return whom a server at this socket answers: at the loopback alone, requests to the loopback;
    otherwise also those to this machine's names."""
    address = str(listener.getsockname()[0])
    if is_loopback(address):
        return ServerAccess(token, frozenset(), True)
    names = {host, socket.gethostname(), socket.getfqdn()}
    return ServerAccess(token, frozenset(name.lower() for name in names), False)


def address_of(listener: socket.socket) -> str:
    """Return the address of the start page, without the token."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        shown = socket.getfqdn()
    else:
        shown = f"[{host}]" if address.version == 6 else str(host)
    return f"http://{shown}:{port}/"


def server_of(site: RunSite, access: ServerAccess) -> uvicorn.Server:
    """Return a server that is not started. It logs no request, as the first one has the token."""
    config = uvicorn.Config(
        SiteApplication(site, access),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_REQUESTS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_LAST_S,
    )
    return uvicorn.Server(config)


def serve(server: uvicorn.Server, listener: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM."""
    with suppress(KeyboardInterrupt):  # which uvicorn raises again after it has ended
        server.run(sockets=[listener])
