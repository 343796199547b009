"""A server of objects over http, with ranges and tags, as slow and untruthful as a test wants."""

from __future__ import annotations

import http.server
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PIECE = 1 << 16  # bytes
_HELD_S = 120.0
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Served:
    """One object."""

    body: bytes
    etag: str | None = '"1"'
    more: int = 0
    """Bytes that the server says it has beyond those it has."""

    then: Served | None = None
    """What it is replaced by, with the connection broken, at byte `at` of the first answer."""

    at: int = 0

    held_from: int = 0
    """The byte, a multiple of the size of a piece, from which whole answers wait for `go_on`."""

    go_on: threading.Event | None = None


@dataclass
class RangeServer:
    """A running server: what it holds, and what was asked of it."""

    objects: dict[str, Served] = field(default_factory=dict)
    ranges: bool = True
    most: int | None = None
    """Bytes of an answer to a range, which are fewer than were asked for if those are more."""

    bytes_per_s: float | None = None
    """Of each answer."""

    total_bytes_per_s: float | None = None
    """Of all answers together."""

    delay_s: float = 0.0
    """Before each answer."""

    seen: list[tuple[str, int]] = field(default_factory=list)
    """(path with query, first byte) of every answer with a body of more than one byte."""

    streams: list[tuple[str, int]] = field(default_factory=list)
    """Those of them that were asked for to the end, wherever that is."""

    headers: list[dict[str, str]] = field(default_factory=list)
    """Of every request."""

    refuses: tuple[str, bytes] | None = None
    """What queries that have this in them are refused with, by the status 403."""

    clients: set[tuple[str, int]] = field(default_factory=set)
    """The connections that they came by."""

    gate: Gate | None = None
    sent: int = 0
    """Bytes of bodies."""

    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    _free_s: float = 0.0

    def turn_s(self, size: int) -> float:
        """When so many bytes may be sent, at `total_bytes_per_s`."""
        with self.lock:
            self._free_s = max(self._free_s, time.monotonic() - 0.1)
            if self.total_bytes_per_s is not None:
                self._free_s += size / self.total_bytes_per_s
            return self._free_s

    def put(self, path: str, body: bytes, **more: object) -> str:
        """Its URL."""
        self.objects[path] = Served(body, **more)  # type: ignore[arg-type]
        return self.url + path


class Gate:
    """Holds a server's answers that are whole shards until it is opened; not for ever."""

    def __init__(self, server: RangeServer, until: int | None = None) -> None:
        """Opens by itself once `until` of them are held."""
        self.count = 0
        self.opened = False
        self.expired = False
        """Whether an answer was held for so long that somebody must have waited for it in vain."""
        self._until = until
        self._changed = threading.Condition()
        server.gate = self

    def open(self) -> None:
        with self._changed:
            self.opened = True
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Until so many are asked for."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, _HELD_S)

    def pass_through(self) -> None:
        with self._changed:
            self.count += 1
            self.opened = self.opened or self.count == self._until
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self.opened, _HELD_S):
                self.expired = True


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: else 40 ms lie between them
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        holds = self.server.holds
        found = holds.objects.get(self.path.partition("?")[0])
        holds.clients.add(self.client_address)
        holds.headers.append({name.lower(): value for name, value in self.headers.items()})
        time.sleep(holds.delay_s)
        if found is None:
            self._head(404, 0, {})
            return
        if holds.refuses is not None and holds.refuses[0] in self.path:
            self._head(403, len(holds.refuses[1]), {})
            self.wfile.write(holds.refuses[1])
            return
        total = len(found.body) + found.more
        match = _RANGE.fullmatch(self.headers.get("Range", "")) if holds.ranges else None
        start = int(match[1]) if match else 0
        end = min(total, int(match[2]) + 1) if match and match[2] else total
        if start >= total:
            self._head(416, 0, {})
            return
        if match and holds.most is not None:
            end = min(end, start + holds.most)
        more = {} if found.etag is None else {"ETag": found.etag}
        if match:
            more["Content-Range"] = f"bytes {start}-{end - 1}/{total}"
        if end - start > 1:
            with holds.lock:
                holds.seen.append((self.path, start))
                if not match or not match[2]:
                    holds.streams.append((self.path, start))
            if holds.gate is not None and (start, end) == (0, total):
                holds.gate.pass_through()
        self._head(206 if match else 200, end - start, more)
        self._body(found, start, end)

    def _head(self, status: int, length: int, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**more, "Content-Length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()

    def _body(self, found: Served, start: int, end: int) -> None:
        holds, began_s, at = self.server.holds, time.monotonic(), start
        while at < end:
            if found.then is not None and start == 0 and end > found.at:
                stop = found.at
            else:
                stop = end
            piece = found.body[at : min(at + PIECE, stop)]
            if not piece:  # the object ends, or is replaced
                if found.then is not None and start == 0:
                    holds.objects[self.path.partition("?")[0]] = found.then
                self.close_connection = True
                return
            if found.go_on is not None and start == 0 and at >= found.held_from:
                found.go_on.wait(_HELD_S)
            if holds.bytes_per_s is not None:
                time.sleep(max(0.0, began_s + (at - start) / holds.bytes_per_s - time.monotonic()))
            if holds.total_bytes_per_s is not None:
                time.sleep(max(0.0, holds.turn_s(len(piece)) - time.monotonic()))
            try:
                self.wfile.write(piece)
            except OSError:  # the client is gone
                self.close_connection = True
                return
            at += len(piece)
            with holds.lock:
                holds.sent += len(piece)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, holds: RangeServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.holds = holds


@contextmanager
def range_server() -> Iterator[RangeServer]:
    """An empty server in threads of this process."""
    holds = RangeServer()
    with _Server(holds) as server:
        holds.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="range-server")
        thread.start()
        try:
            yield holds
        finally:
            server.shutdown()
            thread.join()
