"""`hpckit serve` over real sockets: who is answered, with what, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hpckit.serve
from hpckit.cli.common.exit_status import REFUSED
from hpckit.cli.main import app
from hpckit.serve.http_application import ServerAccess
from hpckit.serve.page_server import access_of, listen
from tests.integration.cli.team_view import TOKEN, TeamView, team_view
from tests.unit.hpckit.serve.served_runs import HOSTILE, ServedFolder, go_on, make_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ServedFolder:
    return make_runs(tmp_path_factory.mktemp("served") / "runs")


@pytest.fixture(scope="module")
def view(runs: ServedFolder) -> Iterator[TeamView]:
    with team_view(runs.site()) as running:
        yield running


def test_nothing_is_answered_without_the_token(view: TeamView, runs: ServedFolder) -> None:
    for path in ("/", "/style.css", "/live.js", "/runs.json", "/none", "/?token=wrong", "/?token="):
        answer = view.ask(path, token=None)
        assert answer.status == 401, path
        assert "token" in answer.text
        assert runs.trained.name not in answer.text
        assert "set-cookie" not in answer.headers
    assert view.ask("/", token=TOKEN[:-1]).status == 401


def test_the_token_in_an_address_becomes_a_cookie(view: TeamView) -> None:
    sent = view.ask(f"/runs.json?token={TOKEN}&x=1", token=None)
    assert sent.status == 303
    assert sent.headers["location"] == "/runs.json?x=1"
    name, _, attributes = sent.headers["set-cookie"].partition(";")
    assert {one.strip().lower() for one in attributes.split(";")} == {
        *("httponly", "path=/", "samesite=lax"),
    }
    assert view.ask("/runs.json?x=1", token=None, Cookie=name).status == 200
    assert view.ask(f"//evil.example/?token={TOKEN}", token=None).headers["location"] == (
        "/evil.example/"
    )


def test_a_page_of_another_site_reads_nothing(view: TeamView) -> None:
    for host in ("evil.example", f"evil.example:{view.port}", "127.0.0.1.evil.example"):
        assert view.ask("/", Host=host).status == 400
    for host in (f"localhost:{view.port}", "127.0.0.1:1", "[::1]:9"):
        assert view.ask("/", Host=host).status == 200
    answer = view.ask("/", Origin="http://evil.example")
    assert not any(name.startswith("access-control") for name in answer.headers)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "server" not in answer.headers


def test_a_request_that_could_change_something_is_refused(view: TeamView) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FROBNICATE"):
        answer = view.ask("/", method)
        assert answer.status == 405, method
        assert answer.headers["allow"] == "GET, HEAD"
    head = view.ask("/", "HEAD")
    assert (head.status, head.text) == (200, "")
    assert int(head.headers["content-length"]) > 1000


@pytest.mark.parametrize(
    "path",
    [
        *("/runs/../../../../etc/passwd", "/runs/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd"),
        *("/runs/gpt-1a2b3c4d/../../secret", "/runs/gpt-1a2b3c4d/events.jsonl", "/%00"),
        *("/runs/gpt-1a2b3c4d%2findex.html%2f..", "/assets/style.css", "/runs/%ff/index.html"),
        *("/..%2f..%2fetc/passwd", "/runs/.git/config", "/runs/gpt-1a2b3c4d/verdict.json"),
    ],
)
def test_no_address_leads_to_a_file(path: str, view: TeamView) -> None:
    answer = view.ask(path)
    assert (answer.status, answer.text) == (404, "No page has this address.\n")


def test_pages_over_the_network(view: TeamView, runs: ServedFolder) -> None:
    index = view.ask("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script>" not in index.text
    assert HOSTILE.replace("<", "&lt;").partition(">")[0] in index.text
    keys = [one["key"] for one in json.loads(view.ask("/runs.json").text)["runs"]]
    assert len(keys) == 6
    for key in keys:
        for name in ("", "report.html", "checkpoints.html", "error.html"):
            answer = view.ask(f"/runs/{key}/{name}")
            assert answer.status == 200
            assert "<script>" not in answer.text
    report = view.ask(f"/runs/{runs.trained.name}/report.html")
    assert report.headers["content-security-policy"].endswith("style-src 'unsafe-inline'")
    assert view.ask("/style.css").headers["content-type"].startswith("text/css")
    assert view.ask("/live.js").headers["content-type"].startswith("text/javascript")


def test_what_no_browser_sends_is_survived(view: TeamView) -> None:
    for sent in (b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", b"GET " + b"x" * 200_000):
        found = b""
        with (
            socket.create_connection(("127.0.0.1", view.port), timeout=60) as connection,
            suppress(OSError),  # the server has closed it
        ):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while more := connection.recv(1 << 16):
                found += more
        assert found == b"" or found.startswith(b"HTTP/1.1 400"), found[:80]
    assert view.ask("/").status == 200


def test_steps_are_seen_as_they_are_made(runs: ServedFolder, tmp_path: Path) -> None:
    made = make_runs(tmp_path / "runs")
    with team_view(made.site(0.0)) as view:

        def step() -> object:
            found = json.loads(view.ask("/runs.json").text)["runs"]
            return next(one["step"] for one in found if one["run"] == made.hostile.name)

        assert step() == 10
        go_on(made.hostile, 11)
        while step() == 10:
            continue
        assert step() == 11


def test_an_address_of_the_network_has_other_names_too() -> None:
    with listen("0.0.0.0", 0) as listener:
        access = access_of(listener, "0.0.0.0", TOKEN)
    assert not access.is_loopback_only
    assert socket.gethostname().lower() in access.names
    assert TOKEN not in repr(access)
    with listen("localhost", 0) as listener:
        assert access_of(listener, "localhost", TOKEN) == ServerAccess(TOKEN, frozenset(), True)


def test_the_command_prints_an_address_and_ends_when_asked(runs: ServedFolder) -> None:
    command = [sys.executable, "-m", "hpckit", "serve", str(runs.root), "--host", "0.0.0.0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["runs", "6", "runs"]
        name, address = process.stdout.readline().split()
        assert name == "address"
        place, _, token = address.partition("/?token=")
        port = int(place.rpartition(":")[2])
        answer = TeamView(port).ask("/", token=token)
        assert answer.status == 200
        assert runs.trained.name in answer.text
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert "HTTP is not encrypted: who has the token" in " ".join(said.split())
    assert "Traceback" not in said
    assert token not in said + out
    assert process.returncode in (0, -signal.SIGTERM)


HANGING = """
import sys, time
from hpckit.cli.main import app
from hpckit.serve.site import RunSite
RunSite.page = lambda *_: print("hangs", flush=True) or time.sleep(1e6)
app(["serve", sys.argv[1]])
"""


def test_ctrl_c_ends_the_command_although_a_page_hangs(runs: ServedFolder) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, str(runs.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        place, _, token = process.stdout.readline().split()[1].partition("/?token=")
        port = int(place.rpartition(":")[2])
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as asking:
            asking.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
            assert process.stdout.readline() == "hangs\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
            assert asking.getresponse().status == 503
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert "Traceback" not in said


def test_the_command_writes_pages_as_files(runs: ServedFolder, tmp_path: Path) -> None:
    words = ["serve", str(runs.trained.path), str(runs.fork.path), "--export", str(tmp_path / "w")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout.split()[:3] == ["pages", "13", "files"]
    assert "gpt-1a2b3c4d" in (tmp_path / "w" / "index.html").read_text()
    both = CliRunner().invoke(app, [*words, "--port", "8642"])
    assert both.exit_code == REFUSED
    assert "--port: --export writes files and serves nothing" in both.stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("")
    words[-1] = str(tmp_path / "mine")
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == REFUSED
    assert "has other files" in refused.stderr


def test_what_cannot_be_served_is_refused_in_one_line(
    runs: ServedFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*words: str) -> str:
        done = CliRunner().invoke(app, ["serve", str(runs.root), *words])
        assert done.exit_code == REFUSED, done.output
        (line,) = done.stderr.splitlines()
        return line

    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert "cannot listen at 127.0.0.1" in refusal("--port", str(port))
    assert "cannot listen at 192.0.2.1" in refusal("--host", "192.0.2.1")
    assert "cannot listen at no.such.invalid" in refusal("--host", "no.such.invalid")
    (tmp_path / "token").write_text("0123456789abcdef")
    (tmp_path / "token").chmod(0o644)
    assert "chmod 600" in refusal("--token-file", str(tmp_path / "token"))
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "hpckit.serve.page_server")
    monkeypatch.delattr(hpckit.serve, "page_server")
    assert "pip install 'hpckit-torch[launcher,serve]'" in refusal()


def test_many_clients_are_answered_at_a_time(view: TeamView) -> None:
    connections = [http.client.HTTPConnection("127.0.0.1", view.port, timeout=60) for _ in range(9)]
    for one in connections:
        one.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
    for one in connections:
        with closing(one):
            assert one.getresponse().status == 200
