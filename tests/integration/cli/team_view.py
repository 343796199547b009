"""A real server of the web view, in a thread, and what a client says to it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass

from hpckit.serve.page_server import access_of, listen, server_of
from hpckit.serve.site import RunSite
from tests.integration.run.runs import eventually

TOKEN = "0123456789-of-the-tests"


@dataclass(frozen=True)
class Answer:
    """What the server has answered."""

    status: int
    headers: Mapping[str, str]
    """By names in lower case."""
    text: str


@dataclass(frozen=True)
class TeamView:
    """A running server."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self, path: str, method: str = "GET", token: str | None = TOKEN, **headers: str
    ) -> Answer:
        """Send a request whose path is not changed; `headers` have _ for -."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given.setdefault("Authorization", f"Bearer {token}")
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, path, headers=given)
            found = connection.getresponse()
            text = found.read().decode()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, text)


@contextmanager
def team_view(site: RunSite) -> Iterator[TeamView]:
    """A server at a free port of the loopback, for the duration of the block."""
    with listen("127.0.0.1", 0) as listener:
        server = server_of(site, access_of(listener, "127.0.0.1", TOKEN))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        eventually(lambda: server.started or None)
        try:
            yield TeamView(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()
