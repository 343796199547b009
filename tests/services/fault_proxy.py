"""A proxy in front of an S3 server that lets requests go wrong, by rules set while it runs.

It passes the Host header on as it came, because clients sign it: talk to the proxy in path style.
Chunked bodies are passed on whole, with their length.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from tests.services.fault_relay import Streams, answer_with, connection, pass_on
from tests.services.faults import Answer, Delay, Hang, Reset, Rules
from tests.services.http_stream import LINE_LIMIT, read_head, reset
from tests.services.processes import ServiceError


class FaultProxy(Rules):
    """A running proxy: `endpoint` in place of the server's, and the rules."""

    endpoint: str

    def __init__(self, upstream: str) -> None:
        super().__init__()
        parts = urlsplit(upstream)
        if parts.scheme != "http" or parts.hostname is None:
            raise ServiceError(f"a fault proxy needs an http:// endpoint, not {upstream!r}")
        self._upstream = (parts.hostname, parts.port or 80)
        self._connections: set[asyncio.Task[None]] = set()
        self.errors: list[BaseException] = []

    async def serve(self, listening: threading.Event, stop: asyncio.Event) -> None:
        """Serve until `stop`, then drop all connections."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=LINE_LIMIT)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        listening.set()
        await stop.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client connection, request by request."""
        try:
            while await self._request((reader, writer)):
                pass
        except asyncio.IncompleteReadError:  # the end of a connection that was kept for more
            pass
        except OSError:  # one side is gone: so is the other
            reset(writer)
        finally:
            writer.close()

    async def _request(self, client: Streams) -> bool:
        """Pass on one request and its answer; whether the connection can take another one."""
        head = await read_head(client[0])
        method, target, _ = head.line
        fault = self.judge(method, unquote(target))
        match fault:
            case Reset():
                reset(client[1])
                return False
            case Hang(seconds):
                await asyncio.sleep(seconds)
                reset(client[1])
                return False
            case Answer():
                await answer_with(client, head, fault)
                return False
            case Delay(seconds):
                await asyncio.sleep(seconds)
        async with connection(*self._upstream) as server:
            return await pass_on(client, server, head, fault)


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """A proxy in a thread of this process, in front of the endpoint `upstream` (http).

    Raises:
        ServiceError: at the end, if it could not pass on a message, or a fault was beyond the end
            of a body: such a test would have tested nothing.
    """
    proxy = FaultProxy(upstream)
    listening = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(
        target=loop.run_until_complete, args=(proxy.serve(listening, stop),), name="fault-proxy"
    )
    thread.start()
    if not listening.wait(timeout=120):
        raise ServiceError("the fault proxy does not listen; its thread has said why")
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
    if proxy.errors:
        raise ServiceError(f"the fault proxy could not do as told: {proxy.errors}")
