"""A store that does not answer is given up soon by every command, which says what was tried and
what to do. The sockets accept and are mute, refuse, reset, or are of a host without address."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from checkpointing.errors import StoreError
from checkpointing.storage import open_storage
from checkpointing.storage.retry import RequestRetrier, StorageRetryPolicy
from data.source.retry import SourceRetryPolicy
from hpckit.cli.data import app as data_app
from hpckit.cli.main import app
from hpckit.doctor.checkpoint_store import findings
from tests.integration.cli.ckpt_commands import ckpt, make_store, refused
from tests.services.faults import Delay
from tests.services.fixtures import FaultyS3

KINDS = {
    "mute": "no answer in time",
    "refusing": "Connection refused",
    "resetting": "Connection reset",
    "nameless": "lookup",
}
URL = "s3://bucket/ckpts"
COMMANDS = {
    "follow": (URL, "--into", "out", "--once", "--give-up", "0"),
    "ls": (URL,),
    "show": (URL,),
    "du": (URL,),
    "diff": (URL, "1", "2"),
    "verify": (URL,),
    "prune": (URL, "--keep", "last=1", "--yes"),
    "pin": (URL, "1"),
    "unpin": (URL, "1"),
    "repair": (URL,),
    "flatten": (URL, "1"),
    "compact": (URL,),
    "export": (URL, "1", "out", "--format", "safetensors"),
    "import": ("in", URL, "--format", "safetensors", "--step", "1", "--run", "r", "--create"),
}


@contextmanager
def server(kind: str) -> Iterator[str]:
    """The endpoint of a server that is of no use."""
    if kind == "nameless":
        yield "http://no-such-host.invalid:9000"
        return
    held: list[socket.socket] = []
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        thread = threading.Thread(target=_serve, args=(listening, kind, held))
        if kind != "refusing":
            listening.listen()
            thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            if kind != "refusing":
                listening.shutdown(socket.SHUT_RDWR)
                thread.join()
            for connection in held:
                connection.close()


def _serve(listening: socket.socket, kind: str, held: list[socket.socket]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:  # the test is over
            return
        if kind == "mute":
            held.append(connection)
            continue
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little patience, so that the test need not wait; credentials of nobody."""
    monkeypatch.setattr("hpckit.system.store_timeouts.STORE_BUDGET_S", 0.4)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "hush")


def check_told(text: str, endpoint: str) -> None:
    assert re.search(r"given up after \d+ tries in \d+ s", text), text
    assert endpoint in text
    assert "AWS_ENDPOINT_URL" in text
    assert "can reach it" in text
    assert "hush" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_said_what_was_tried_and_what_to_do(
    kind: str, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(kind) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        text = refused("ls", URL, exit_code=3)
        check_told(text, endpoint)
        assert KINDS[kind] in text
        body = json.loads(ckpt("ls", URL, "--json").stdout)
        assert body["exit"] == 3
        assert endpoint in body["error"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_gives_up(
    command: str, short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    with server("mute") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        check_told(refused(command, *COMMANDS[command], exit_code=3), endpoint)


def test_no_command_is_left_out() -> None:
    root: Any = typer.main.get_command(app)
    commands = root.commands["ckpt"].commands
    named = {
        name
        for name, command in commands.items()
        if any(parameter.name == "place" for parameter in command.params)
    }
    assert named == set(COMMANDS)


def test_the_other_store_is_given_up_as_well(
    short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = make_store(tmp_path / "store").url
    with server("mute") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        check_told(refused("repair", here, "--from", URL, exit_code=3), endpoint)
        check_told(refused("diff", here, 100, 200, "--with", URL, exit_code=3), endpoint)


def test_doctor_gives_up(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with server("mute") as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        (finding,) = findings(URL)
        check_told(finding.what, endpoint)


@pytest.mark.parametrize("kind", KINDS)
def test_s3fs_gives_up(kind: str, short: None) -> None:
    with server(kind) as endpoint:
        given = {"endpoint": endpoint, "client": "s3fs", "region": "r", "reach_s": 0.4}
        storage = open_storage(
            URL, options={**given, "access_key_id": "a", "secret_access_key": "b"}
        )
        with pytest.raises(StoreError) as caught:
            storage.get("hpckit.json")
        storage.close()
        check_told(str(caught.value), endpoint)


def test_other_drivers_give_up() -> None:
    with server("refusing") as endpoint:
        url = f"ftp://{endpoint.removeprefix('http://')}/ckpts"
        with pytest.raises(StoreError, match=r"given up after \d+ tries.*no request to ftp://"):
            open_storage(url, options={"reach_s": 0.4}).list("runs/")


def test_one_that_has_answered_is_given_more_time(faulty_s3: FaultyS3) -> None:
    given = {**faulty_s3.place.options, "reach_s": 6.0}  # a try has 3 s
    storage = open_storage(faulty_s3.place.url, options=given)
    with pytest.raises(FileNotFoundError):  # an answer, too
        storage.get("nothing")
    before = storage.counters.retries  # type: ignore[attr-defined]
    rule = faulty_s3.proxy.inject(Delay(3.5), times=1)
    storage.put("object", [b"data"])
    assert rule.hits == 1
    assert storage.counters.retries == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("reach_s", [0, -1.0, True, "15"])
def test_an_option_that_is_no_time(reach_s: object, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="reach_s"):
        open_storage(str(tmp_path), options={"reach_s": reach_s})


def test_a_try_is_short_until_the_first_answer() -> None:
    runs = RequestRetrier(StorageRetryPolicy(reach_s=15.0), (OSError,), lambda error, what: None)
    assert (runs.try_s(30.0), runs.try_s(5.0)) == (7.5, 5.0)
    runs.run("read x", lambda: None)
    assert runs.try_s(30.0) == 30.0
    assert (
        RequestRetrier(StorageRetryPolicy(), (OSError,), lambda error, what: None).try_s(30.0)
        == 30.0
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["ls", "verify", "index", "where"])
def test_commands_on_shards_give_up(kind: str, command: str, short: None, tmp_path: Path) -> None:
    given = {
        "where": ("--position", "0", "--global-batch", "8"),
        "index": ("--out", f"{tmp_path}/i"),
    }
    words = given.get(command, ())
    shards = "s3://bucket/{0..1}.tar" if command == "index" else "s3://bucket/shards/"
    with server(kind) as endpoint:
        env = {"AWS_ENDPOINT_URL": endpoint}
        done = CliRunner().invoke(data_app, [command, shards, *words], env=env)
    assert done.exit_code == (1 if command == "index" else 3), done.output  # 1: of each shard
    assert re.search(r"given up after \d+ tries in \d\.\d s", done.output), done.output


def test_a_host_that_has_answered_is_given_more_time() -> None:
    policy = SourceRetryPolicy(reach_s=15.0)
    assert policy.before_an_answer() == SourceRetryPolicy(15.0, least_tries=2, reach_s=15.0)
    assert SourceRetryPolicy().before_an_answer() == SourceRetryPolicy()
