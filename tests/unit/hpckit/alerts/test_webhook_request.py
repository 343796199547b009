"""Requests to a real web server that is down, slow, failing or elsewhere."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hpckit.alerts.alert_errors import AlertError, AlertRejectedError, AlertUnavailableError
from hpckit.alerts.webhook_request import post
from tests.services.certificates import make_certificates
from tests.unit.hpckit.alerts.webhook_server import webhook_server

DOCUMENT = {"text": "ended"}


def test_a_document_is_posted() -> None:
    with webhook_server() as server:
        post(server.url, DOCUMENT)
    assert server.documents == [DOCUMENT]
    assert server.paths == ["POST /hooks/secret-part"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *[(status, AlertUnavailableError) for status in (500, 502, 503, 408, 429)],
        *[(status, AlertRejectedError) for status in (400, 403, 404, 410)],
        *[(status, AlertRejectedError) for status in (301, 302, 307, 308)],
    ],
)
def test_a_status_says_whether_another_try_may_help(status: int, kind: type[AlertError]) -> None:
    with webhook_server() as server, webhook_server("elsewhere") as other:
        server.statuses, server.headers = [status], {"Location": other.url}
        with pytest.raises(kind, match=f"status {status}") as failed:
            post(server.url, DOCUMENT)
    assert "secret-part" not in str(failed.value)
    assert other.paths == []  # no redirect is followed


@pytest.mark.parametrize(("given", "after_s"), [("7", 7.0), ("999999", 600.0), ("soon", None)])
def test_a_server_that_asks_for_time_gets_it(given: str, after_s: float | None) -> None:
    with webhook_server() as server:
        server.statuses, server.headers = [429], {"Retry-After": given}
        with pytest.raises(AlertUnavailableError) as failed:
            post(server.url, DOCUMENT)
    assert failed.value.after_s == after_s


def test_a_server_that_is_down_or_never_answers_is_unavailable() -> None:
    with webhook_server() as server:
        server.statuses = [0]
        with pytest.raises(AlertUnavailableError, match=r"no answer within 0\.2 s"):
            post(server.url, DOCUMENT, timeout_s=0.2)
    with pytest.raises(AlertUnavailableError, match="refused") as failed:
        post(server.url, DOCUMENT)
    assert "secret-part" not in str(failed.value)


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that handles one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield int(listener.getsockname()[1])
        thread.join()


def test_what_is_no_web_server_is_unavailable() -> None:
    def answer(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(b"secret nonsense\r\n\r\n")

    with answering(answer) as port, pytest.raises(AlertUnavailableError) as failed:
        post(f"http://127.0.0.1:{port}/x", DOCUMENT)
    assert "nonsense" not in str(failed.value)


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with webhook_server() as server:
        post(server.url, DOCUMENT)
    assert len(server.documents) == 1


def test_a_certificate_that_is_not_trusted_is_refused(tmp_path: Path) -> None:
    made = make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)

    def answer(connection: socket.socket) -> None:
        with suppress(OSError):
            context.wrap_socket(connection, server_side=True).close()

    with (
        answering(answer) as port,
        pytest.raises(AlertUnavailableError, match="certificate is not trusted"),
    ):
        post(f"https://localhost:{port}/x", DOCUMENT)
