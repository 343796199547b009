"""The rendezvous store: a real server, for as long as its block lasts."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from hpckit.agent import rendezvous_store as module
from hpckit.agent.rendezvous_store import RendezvousStore, RendezvousStoreError
from tests.unit.hpckit.specs_and_processes import until

HOST = "127.0.0.1"
UNBINDABLE = "203.0.113.1"  # TEST-NET-3 (RFC 5737): nobody's address


@pytest.fixture
def store() -> Iterator[RendezvousStore]:
    with RendezvousStore(HOST) as store:
        yield store


class Line:
    """A connection, word for word."""

    def __init__(self, store: RendezvousStore, hello: str | None = None) -> None:
        self._socket = socket.create_connection((store.host, store.port), 10)
        self._file = self._socket.makefile("rb")
        self.say(store.token if hello is None else hello)

    def say(self, line: str) -> None:
        self._socket.sendall(line.encode() + b"\n")

    def ask(self, **request: Any) -> None:
        self.say(json.dumps(request))

    def end(self) -> None:
        """As the kernel does for a process that was killed."""
        self._file.close()
        self._socket.close()

    def heard(self) -> Any:
        """The next answer; None: the other side has ended."""
        try:
            line = self._file.readline()
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None


def test_a_port_is_served_and_gone_after_the_block() -> None:
    with RendezvousStore(HOST) as store:
        stays = Line(store)
        stays.ask(id=1, do="get", keys=["k"])
        Line(store).ask(id=1, do="add", key="n", by=1)
    assert stays.heard() is None
    with pytest.raises(ConnectionRefusedError):
        Line(store)


def test_all_addresses_are_listened_on() -> None:
    with RendezvousStore(None) as store:
        line = Line(store)
        line.ask(id=1, do="add", key="n", by=2)
        assert line.heard() == {"id": 1, "value": "2"}


def test_an_address_that_is_not_this_machines_is_an_error() -> None:
    store = RendezvousStore(UNBINDABLE)
    with pytest.raises(RendezvousStoreError, match=rf"cluster\.address.* {UNBINDABLE}"), store:
        pass


def test_the_end_of_a_connection_that_has_a_name_is_told_once(store: RendezvousStore) -> None:
    named, nameless = Line(store), Line(store)
    named.ask(id=1, do="name", name="gpt-g1/0")
    for line in (named, nameless):
        line.ask(id=2, do="add", key="n", by=1)
        assert line.heard()["id"] == 2
    assert store.disconnected() == []
    nameless.end()
    named.end()
    found: list[str] = []

    def is_told() -> bool:
        found.extend(store.disconnected())
        return bool(found)

    until(is_told)
    assert found == ["gpt-g1/0"]
    assert store.disconnected() == []


def test_many_requests_at_once_are_answered_in_their_order(store: RendezvousStore) -> None:
    line = Line(store)
    requests = [json.dumps({"id": n, "do": "add", "key": "n", "by": 1}) for n in range(2000)]
    line.say("\n".join(requests))
    assert [line.heard() for _ in requests] == [
        {"id": n, "value": str(n + 1)} for n in range(len(requests))
    ]


def test_who_waits_is_told_and_may_ask_for_something_else_meanwhile(
    store: RendezvousStore,
) -> None:
    waits, sets = Line(store), Line(store)
    waits.ask(id=1, do="get", keys=["a", "b"])
    waits.ask(id=2, do="set", key="b", value="ü")
    assert waits.heard() == {"id": 2}
    sets.ask(id=1, do="set", key="a", value="x")
    assert waits.heard() == {"id": 1, "values": ["x", "ü"]}


def test_a_generation_begins_with_nothing(store: RendezvousStore) -> None:
    line = Line(store)
    line.ask(id=1, do="get", keys=["later"])
    line.ask(id=2, do="add", key="n", by=7)
    assert line.heard() == {"id": 2, "value": "7"}
    store.clear()
    line.ask(id=3, do="add", key="n", by=1)
    assert line.heard() == {"id": 3, "value": "1"}
    line.ask(id=4, do="set", key="later", value="")
    assert line.heard() == {"id": 4}, "nobody waits any more"


@pytest.mark.parametrize("hello", ["", "0" * 32, '{"id": 1, "do": "add", "key": "n", "by": 1}'])
def test_who_does_not_know_the_token_is_not_heard(store: RendezvousStore, hello: str) -> None:
    stranger = Line(store, hello)
    stranger.ask(id=1, do="set", key="n", value="5")
    assert stranger.heard() is None
    knows = Line(store)
    knows.ask(id=1, do="add", key="n", by=1)
    assert knows.heard() == {"id": 1, "value": "1"}


def test_who_says_nothing_is_not_kept(
    store: RendezvousStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELLO_S", 0.1)
    with socket.create_connection((store.host, store.port), 10) as silent:
        assert silent.recv(1) == b""


@pytest.mark.parametrize(
    "line",
    [
        *("no json", "[]", "{}", '{"id": 1}', '{"id": 1, "do": "shutdown"}', "[" * 100_000),
        *('{"id": 1, "do": "add", "key": "n", "by": "x"}', '{"id": 1, "do": "get"}', "x" * 2**21),
    ],
    ids=lambda line: line[:50],
)
def test_what_is_no_request_ends_its_connection_and_no_other(
    store: RendezvousStore, line: str
) -> None:
    other, broken = Line(store), Line(store)
    with suppress(ConnectionError):
        broken.say(line)
    assert broken.heard() is None
    other.ask(id=1, do="set", key="a", value="b")
    assert other.heard() == {"id": 1}
