"""The rendezvous store: a server of keys and values by which the nodes of a generation meet.

It is a thread of the supervisor: no node's loss takes it down, and no process imports torch for it.
torch's own (`TCPStore`) lets everybody write who reaches its port; this one heeds those alone who
know its token, which agents are told by their pipes.

A connection is lines: the token, then requests, each a JSON object with an `id` of the client's
choice, which the answer to it has, too:

    {"id": 1, "do": "set", "key": "a", "value": "x"}    {"id": 1}
    {"id": 2, "do": "add", "key": "n", "by": 1}         {"id": 2, "value": "1"}
    {"id": 3, "do": "get", "keys": ["a", "b"]}          {"id": 3, "values": ["x", "y"]}
    {"id": 4, "do": "name", "name": "a node"}           (nothing)

A `get` is answered once all its keys are there, and other requests meanwhile. So a node asks once
for the next restart, and is told, where torchrun's own rendezvous asks again and again. The end of
a connection that has a name is told to the supervisor: the kernel closes it with its process, at
once, where a node says no more for seconds before it counts as lost.
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
"""Seconds for a connection to say the token."""
MOST_BYTES = 1 << 20
"""Of a line from who has said it; torchrun's have some hundred."""
_BACKLOG = 4096  # all nodes connect at once; Linux's own limit (net.core.somaxconn)
_HERE = "127.0.0.1"


class RendezvousStoreError(RuntimeError):
    """The store cannot listen where it is to."""


class RendezvousStore:
    """Serves while the `with` block lasts.

    Attributes:
        host, port: by which processes of this machine reach it.
        token: what a connection has to begin with.
    """

    def __init__(self, address: str | None) -> None:
        """
        Args:
            address: the one that it listens on; None: all of this machine's.
        """
        self.host = address or _HERE
        self.token = secrets.token_hex(16)
        self._address = address
        self._table = KeyValueTable()
        self._there: set[_Connection] = set()
        self._left: deque[str] = deque()
        self._is_over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="rendezvous store", daemon=True)

    def __enter__(self) -> RendezvousStore:
        """
        Raises:
            StoreError: the address is none of this machine's.
        """
        listening = _listening(self._address)
        self.port = int(listening.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            self._loop.create_server(self._connection, sock=listening, backlog=_BACKLOG)
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)
        self._thread.join()

    def clear(self) -> None:
        """Forget what the nodes of a generation that has ended have left."""
        self._loop.call_soon_threadsafe(self._table.clear)

    def left(self) -> list[str]:
        """Names of the connections that have ended since the last call."""
        return [self._left.popleft() for _ in range(len(self._left))]

    def _connection(self) -> _Connection:
        return _Connection(self._table, self.token.encode(), self._there, self._left)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        await self._is_over.wait()
        self._server.close()
        coming = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in coming:  # connections that were accepted, and are not there yet
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for connection in self._there:
            connection.end()
        await asyncio.sleep(0)  # in which they do


class _Connection(asyncio.Protocol):
    """What it raises ends it, and is logged by asyncio."""

    def __init__(
        self, table: KeyValueTable, token: bytes, there: set[_Connection], left: deque[str]
    ) -> None:
        self._table, self._token, self._there, self._left = table, token, there, left
        self._is_trusted = False
        self._name: str | None = None
        self._unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._there.add(self)
        self._patience = asyncio.get_running_loop().call_later(HELLO_S, self.end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._patience.cancel()
        self._there.discard(self)
        if self._name is not None:
            self._left.append(self._name)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while not self._transport.is_closing() and b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            self._take(line)
        if len(self._unread) > (MOST_BYTES if self._is_trusted else len(self._token)):
            self._refuse("a line that is too long")

    def end(self) -> None:
        self._transport.abort()

    def _take(self, line: bytes) -> None:
        if self._is_trusted:
            request = json.loads(line)
            if request["do"] == "name":
                self._name = str(request["name"])
            else:
                self._table.do(request, partial(self._answer, request["id"]))
        elif hmac.compare_digest(line, self._token):
            self._is_trusted = True
            self._patience.cancel()
        else:
            self._refuse("a wrong token")

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
