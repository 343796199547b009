"""An HTTP endpoint that answers GET /metrics in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hpckit.exporter.exposition import CONTENT_TYPE

PATIENCE_S = 5.0
"""Seconds of silence after which a client's connection is closed."""


class Endpoint:
    """Answers requests until it is closed.

    Raises:
        OSError: the address is taken, or not of this machine.
    """

    def __init__(self, address: str, port: int, page: Callable[[], str]) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE_S

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404, "the only page is /metrics")
                    return
                text = page().encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Drops the message, as requests do not belong in the agent's log."""

        self._server = ThreadingHTTPServer((address, port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="endpoint", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
