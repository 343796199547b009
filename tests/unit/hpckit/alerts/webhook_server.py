"""A web server of this machine that answers as it is told and keeps what it gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class WebhookServer:
    """Answers each request with the next of `statuses`; the last one holds for all further ones.
    0: it does not answer until the test is over."""

    def __init__(self) -> None:
        self.statuses = [200]
        self.headers: dict[str, str] = {}
        self.documents: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.is_over = threading.Event()
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        self.paths.append(f"{handler.command} {handler.path}")
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status == 0:
            self.is_over.wait()
            return
        if status == 200:
            self.documents.append(json.loads(body))
        handler.send_response(status)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.end_headers()


@contextmanager
def webhook_server(secret: str = "secret-part") -> Iterator[WebhookServer]:
    server = WebhookServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.answer(self)

        def do_GET(self) -> None:
            server.paths.append(f"GET {self.path}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        server.url = f"http://127.0.0.1:{http.server_address[1]}/hooks/{secret}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.is_over.set()
            http.shutdown()
            thread.join()
