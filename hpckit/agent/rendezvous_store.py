"""The rendezvous store: a key-value server through which the nodes of a generation find each other.

It is a thread of the supervisor, so the loss of a node does not end it, and no process has to
import torch for it. torch's own store (`TCPStore`) lets every client write that reaches its port;
this one only serves clients that know its token, which agents get through their pipes.

A connection consists of lines: first the token, then requests, each a JSON object with an `id` of
the client's choice, which its answer repeats:

    {"id": 1, "do": "set", "key": "a", "value": "x"}    {"id": 1}
    {"id": 2, "do": "add", "key": "n", "by": 1}         {"id": 2, "value": "1"}
    {"id": 3, "do": "get", "keys": ["a", "b"]}          {"id": 3, "values": ["x", "y"]}
    {"id": 4, "do": "name", "name": "a node"}           (nothing)

A `get` is answered once all its keys exist; other requests are answered meanwhile. So a node asks
once for the next restart and waits for the answer, where torchrun's own rendezvous polls. The
supervisor learns of the end of each named connection. The kernel closes a connection at once with
its process, whereas a silent node counts as lost only after seconds.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import socket
import threading
from collections import deque
from functools import partial
from typing import Any

from hpckit.agent.rendezvous_table import KeyValueTable

log = logging.getLogger(__name__)

HELLO_S = 10.0
"""Seconds for a connection to send the token."""
MOST_BYTES = 1 << 20
"""Longest line of a trusted client; torchrun's have some hundred bytes."""
_BACKLOG = 4096  # all nodes connect at once; Linux limits it itself (net.core.somaxconn)
_HERE = "127.0.0.1"


class RendezvousStoreError(RuntimeError):
    """Raised if the store cannot listen on its address."""


class RendezvousStore:
    """A rendezvous store that serves while the `with` block lasts.

    Attributes:
        host, port: where processes of this machine reach it.
        token: the first line of each connection.
    """

    def __init__(self, address: str | None) -> None:
        """
        Args:
            address: the address to listen on. None: all addresses of this machine.
        """
        self.host = address or _HERE
        self.port = 0  # until the store listens
        self.token = secrets.token_hex(16)
        self._address = address
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._table = KeyValueTable()
        self._connections: set[_Connection] = set()
        self._ended_names: deque[str] = deque()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rendezvous store", daemon=True)

    def __enter__(self) -> RendezvousStore:
        """
        Raises:
            RendezvousStoreError: the address does not belong to this machine.
        """
        try:
            listening = _listening(self._address)
        except RendezvousStoreError:
            self._loop.close()
            raise
        self.port = int(listening.getsockname()[1])
        self._server = self._loop.run_until_complete(
            self._loop.create_server(self._connection, sock=listening, backlog=_BACKLOG)
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    def clear(self) -> None:
        """Removes the keys of a generation that has ended."""
        self._loop.call_soon_threadsafe(self._table.clear)

    def disconnected(self) -> list[str]:
        """Returns the names of the connections that have ended since the last call."""
        return [self._ended_names.popleft() for _ in range(len(self._ended_names))]

    def _connection(self) -> _Connection:
        return _Connection(self._table, self.token.encode(), self._connections, self._ended_names)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        await self._is_over.wait()
        if self._server is not None:
            self._server.close()
        pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in pending:  # accepted connections that are not established yet
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for connection in self._connections:
            connection.end()
        await asyncio.sleep(0)  # lets the connections end


class _Connection(asyncio.Protocol):
    """A client's connection. An exception ends it, and asyncio logs it."""

    def __init__(
        self, table: KeyValueTable, token: bytes, there: set[_Connection], left: deque[str]
    ) -> None:
        self._table, self._token, self._connections, self._ended_names = table, token, there, left
        self._open_transport: asyncio.Transport | None = None
        self._hello_timeout: asyncio.TimerHandle | None = None
        self._is_trusted = False
        self._name: str | None = None
        self._unread = b""

    @property
    def _transport(self) -> asyncio.Transport:
        assert self._open_transport is not None  # asyncio calls `connection_made` first
        return self._open_transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._open_transport = transport
        self._connections.add(self)
        self._hello_timeout = asyncio.get_running_loop().call_later(HELLO_S, self.end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timeout()
        self._connections.discard(self)
        if self._name is not None:
            self._ended_names.append(self._name)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while not self._transport.is_closing() and b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            self._handle_line(line)
        if len(self._unread) > (MOST_BYTES if self._is_trusted else len(self._token)):
            self._refuse("refused a line that is too long")

    def end(self) -> None:
        self._transport.abort()

    def _stop_timeout(self) -> None:
        if self._hello_timeout is not None:
            self._hello_timeout.cancel()

    def _handle_line(self, line: bytes) -> None:
        if self._is_trusted:
            request = json.loads(line)
            if request["do"] == "name":
                self._name = str(request["name"])
            else:
                self._table.do(request, partial(self._answer, request["id"]))
        elif hmac.compare_digest(line, self._token):
            self._is_trusted = True
            self._stop_timeout()
        else:
            self._refuse("refused a wrong token")

    def _answer(self, number: int, **said: Any) -> None:
        if not self._transport.is_closing():
            self._transport.write(json.dumps({"id": number, **said}).encode() + b"\n")

    def _refuse(self, what: str) -> None:
        log.warning("rendezvous: %s from %s", what, self._transport.get_extra_info("peername"))
        self.end()


def _listening(address: str | None) -> socket.socket:
    try:
        if address is None and socket.has_dualstack_ipv6():
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        family = socket.AF_INET6 if ":" in (address or "") else socket.AF_INET
        return socket.create_server((address or "", 0), family=family)
    except OSError as error:
        raise RendezvousStoreError(
            f"cluster.address: the rendezvous store cannot listen on {address}: {error}"
        ) from error
