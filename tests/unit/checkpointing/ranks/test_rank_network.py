"""Who may connect to a rank, and how ranks find each other."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from checkpointing.authenticated_channel import (
    KEY_BYTES,
    AuthenticatedChannel,
    connect_channel,
    new_hello,
)
from checkpointing.errors import OtherRankError, ServiceError
from checkpointing.ranks import rank_network
from checkpointing.ranks.peer_address import VARIABLE
from checkpointing.ranks.rank_network import RankAddress, RankNetwork
from tests.unit.checkpointing.thread_ranks import PATIENCE_S, meeting_store


class Meeting:
    """Two ranks of a world of three, and the store in which they meet."""

    def __init__(self) -> None:
        self.store = meeting_store()
        self.networks = [RankNetwork(rank, 3, self.store, PATIENCE_S) for rank in range(2)]
        found = json.loads(self.store.get("network"))
        self.id, self.key = str(found["id"]), bytes.fromhex(found["key"])
        address = json.loads(self.store.get("address/0"))
        self.host, self.port = str(address["host"]) or "127.0.0.1", int(address["port"])

    def close(self) -> None:
        for network in self.networks:
            network.close()


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    found = Meeting()
    yield found
    found.close()


@pytest.mark.parametrize("case", ["key", "generation", "rank", "itself", "lower", "beyond"])
def test_a_stranger_is_refused(meeting: Meeting, case: str) -> None:
    key = bytes(KEY_BYTES) if case == "key" else meeting.key
    generation = "another" if case == "generation" else meeting.id
    rank = {"itself": 0, "lower": -1, "beyond": 3}.get(case, 2)
    hello = new_hello(generation, rank, 1 if case == "rank" else 0, "control")
    with pytest.raises((ConnectionError, ServiceError)):
        connect_channel(meeting.host, meeting.port, key, hello).receive()
    assert not meeting.networks[0]._channels


def test_garbage_is_refused_and_ranks_connect_all_the_same(meeting: Meeting) -> None:
    with socket.create_connection((meeting.host, meeting.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        low, high = meeting.networks
        thread = threading.Thread(target=high.send, args=(0, b"told"))
        thread.start()
        assert low.receive(1) == b"told"
        thread.join()


def test_the_key_is_in_no_error(meeting: Meeting) -> None:
    low, high = meeting.networks
    low.fail("another rank has ended: rank 2")
    with pytest.raises(OtherRankError, match="rank 2") as caught:
        low.connect(1, "control")
    high.close()
    with pytest.raises(OtherRankError, match="closed") as closed:
        high.connect(0, "control")
    for text in (str(caught.value), str(closed.value), repr(low), repr(high)):
        assert meeting.key.hex() not in text


@pytest.mark.parametrize("is_open", [False, True])
def test_ranks_find_each_other_where_others_before_have_left_their_addresses(is_open: bool) -> None:
    """As with torchrun, which keeps its store over a restart, or if a process group is destroyed
    and made again while a network of the first one is open."""
    store, is_current = meeting_store(), True
    before = [
        RankNetwork(rank, 2, store, PATIENCE_S, is_current=lambda: is_current) for rank in range(2)
    ]
    is_current = False
    for network in before if not is_open else ():
        network.close()
    high = RankNetwork(1, 2, store, PATIENCE_S)  # it reads the key of the job before
    thread = threading.Thread(target=high.send, args=(0, b"new"))
    thread.start()
    low = RankNetwork(0, 2, store, PATIENCE_S)
    assert low.receive(1) == b"new"
    thread.join()
    if is_open:
        assert before[0].failure is None
    for network in (low, high, *before):
        network.close()


def test_a_rank_that_cannot_listen_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    store = meeting_store()
    low = RankNetwork(0, 3, store, PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "203.0.113.1")  # of no machine
        with pytest.raises(ServiceError, match=r"cannot listen at '203.0.113.1': .*assign"):
            RankNetwork(1, 3, store, PATIENCE_S)
    high = RankNetwork(2, 3, store, PATIENCE_S)
    for network in (low, high):
        with pytest.raises(OtherRankError, match=r"cannot take part: rank 1: .*203.0.113.1"):
            network.connect(1, "control")
        network.close()


def test_what_a_job_before_has_said_of_a_rank_is_not_believed() -> None:
    store = meeting_store()
    low = RankNetwork(0, 2, store, PATIENCE_S)
    before = RankAddress("of the job before", problem="no address")
    store.set("address/1", json.dumps(asdict(before)))
    assert not low._listens(1)
    high = RankNetwork(1, 2, store, PATIENCE_S)
    assert low._listens(1)
    for network in (low, high):
        network.close()


def test_a_rank_counts_as_unreachable_only_after_it_has_published_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank may come much later than another one, and then refuse the first connection."""
    store, late_s = meeting_store(), 0.0
    low, high = (RankNetwork(rank, 2, store, PATIENCE_S) for rank in range(2))
    address, tried, clock = high._address, [], time.monotonic

    def published(rank: int) -> RankAddress:
        nonlocal late_s
        late_s = 10 * rank_network.UNREACHABLE_S
        return address(rank)

    def connect(*args: Any) -> AuthenticatedChannel:
        tried.append(args)
        if len(tried) == 1:
            raise ConnectionError("refused")
        return connect_channel(*args)

    monkeypatch.setattr(time, "monotonic", lambda: clock() + late_s)
    monkeypatch.setattr(high, "_address", published)
    monkeypatch.setattr(rank_network, "connect_channel", connect)
    high.connect(0, "control")
    assert len(tried) == 2
    monkeypatch.undo()
    for network in (low, high):
        network.close()


def test_a_rank_without_a_descriptor_for_a_connection_says_so_at_once(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: Any) -> AuthenticatedChannel:
        cause = OSError(errno.EMFILE, "Too many open files")
        raise ConnectionError("cannot connect to a peer") from cause

    monkeypatch.setattr(rank_network, "connect_channel", connect)
    with pytest.raises(ServiceError, match=r"rank 1 cannot .* Too many open files.*ulimit"):
        meeting.networks[1].connect(0, "control")


def test_a_rank_that_ends_before_it_hears_that_its_connection_is_kept_is_no_error(
    meeting: Meeting,
) -> None:
    """An error of this thread would be printed."""
    hello = new_hello(meeting.id, 2, 0, "control")
    channel = mock.create_autospec(AuthenticatedChannel, instance=True)
    channel.send.side_effect = ConnectionError("the peer has closed the connection")
    assert not meeting.networks[0]._keep(channel, hello)


def test_a_store_that_is_gone_is_another_rank_that_has_ended() -> None:
    class Gone:
        def set(self, key: str, value: str, /) -> None:
            raise RuntimeError("Connection reset by peer")

        def get(self, key: str, /) -> bytes:
            raise RuntimeError("wait timeout after 1000ms, keys: /network")

        def check(self, keys: list[str], /) -> bool:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(OtherRankError, match="has ended"):
        RankNetwork(0, 2, Gone(), PATIENCE_S)
    with pytest.raises(OtherRankError, match="did not answer in time"):
        RankNetwork(1, 2, Gone(), PATIENCE_S)


def test_a_forked_child_does_not_hold_a_connection_that_has_not_proved_itself(
    meeting: Meeting,
) -> None:
    """Else another rank would not notice that the parent has ended."""
    with socket.create_connection((meeting.host, meeting.port)) as stranger:
        where, deadline_s = stranger.getsockname(), time.monotonic() + PATIENCE_S
        while not (_is_held(where) and _is_greeting()):
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        if not (child := os.fork()):
            os._exit(1 if _is_held(where) else 0)
        assert os.waitpid(child, 0)[1] == 0


def _is_held(peer: object) -> bool:
    """Whether this process has a descriptor of a connection to a peer."""
    for fd in (int(one.name) for one in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                with socket.socket(fileno=os.dup(fd)) as sock:
                    if sock.getpeername() == peer:
                        return True
    return False


def _is_greeting() -> bool:
    return any(re.fullmatch(r"ranks-\d+", one.name) for one in threading.enumerate())
