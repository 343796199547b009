"""Frames between trainers and services: whole or refused, and no descriptor is ever leaked."""

from __future__ import annotations

import array
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpointing.errors import ServiceError
from checkpointing.service.protocol import send_queue as outbox_module
from checkpointing.service.protocol import socket_frames as wire_module
from checkpointing.service.protocol.send_queue import SendQueue
from checkpointing.service.protocol.socket_frames import MAX_FRAME, FrameSocket
from tests.descriptors import links, opened


class Pair:
    """A wire, and the raw socket at its other end."""

    def __init__(self) -> None:
        ours, self.raw = socket.socketpair()
        self.wire = FrameSocket(ours)

    def other(self) -> FrameSocket:
        return FrameSocket(self.raw)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.wire.close()
    made.raw.close()


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    fds = [os.open(tmp_path / str(i), os.O_CREAT | os.O_RDWR) for i in range(6)]
    for fd in fds:
        os.write(fd, b"x")
    yield fds
    for fd in fds:
        os.close(fd)


def frame(body: bytes, length: int | None = None) -> bytes:
    return struct.pack("<I", len(body) if length is None else length) + body


def send_with(raw: socket.socket, data: bytes, fds: list[int]) -> None:
    raw.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def test_messages_arrive_in_order_with_their_descriptors(pair: Pair, files: list[int]) -> None:
    other = pair.other()
    other.send({"kind": "a", "n": 1.5})
    other.send({"kind": "b", "text": "ä" * 5_000}, files[:1])
    assert pair.wire.receive() == ({"kind": "a", "n": 1.5}, [])
    received = pair.wire.receive()
    assert received is not None
    message, (fd,) = received
    assert message == {"kind": "b", "text": "ä" * 5_000}
    assert os.pread(fd, 1, 0) == b"x"
    assert not os.get_inheritable(fd)
    os.close(fd)
    other.close()
    assert pair.wire.receive() is None


def test_a_large_message_from_several_threads(pair: Pair) -> None:
    other, text = pair.other(), "x" * 1_000_000
    threads = [
        threading.Thread(target=other.send, args=({"kind": "k", "i": i, "text": text},))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    received = [pair.wire.receive() for _ in threads]
    assert {message[0]["i"] for message in received if message} == {0, 1, 2, 3}
    assert all(message and message[0]["text"] == text for message in received)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(
    "data",
    [b"", b"\x05", frame(b'{"kind"', 100), frame(b"", 100)],
    ids=["nothing", "half a length", "half a body", "no body"],
)
def test_the_end_in_the_middle_is_an_end(
    pair: Pair, files: list[int], tmp_path: Path, data: bytes
) -> None:
    if data:
        send_with(pair.raw, data, files[:2])
    pair.raw.shutdown(socket.SHUT_RDWR)
    assert pair.wire.receive() is None
    assert opened(tmp_path) == len(files)


@pytest.mark.parametrize(
    "body",
    [b"no json", b"\xff\xfe", b"[]", b'{"no": "kind"}', b'{"kind": 1}', b"[" * 100_000],
    ids=["text", "bytes", "list", "no kind", "number as kind", "deep"],
)
def test_garbage_is_refused(pair: Pair, files: list[int], tmp_path: Path, body: bytes) -> None:
    send_with(pair.raw, frame(body), files[:1])
    with pytest.raises(ServiceError, match="not a message"):
        pair.wire.receive()
    assert opened(tmp_path) == len(files)


def test_what_is_too_long_is_refused_before_it_is_read(pair: Pair) -> None:
    pair.raw.send(frame(b"", MAX_FRAME + 1))
    with pytest.raises(ServiceError, match="too long"):
        pair.wire.receive()


def test_what_is_too_long_is_not_sent(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "MAX_FRAME", 100)
    with pytest.raises(ServiceError, match="too long: long"):
        pair.wire.send({"kind": "long", "text": "x" * 100})
    pair.wire.send({"kind": "short"})


def test_too_many_descriptors_are_refused_and_closed(
    pair: Pair, files: list[int], tmp_path: Path
) -> None:
    send_with(pair.raw, frame(b'{"kind":"x"}'), files)
    with pytest.raises(ServiceError, match="descriptors"):
        pair.wire.receive()
    assert opened(tmp_path) == len(files)


def test_a_peer_that_is_gone(pair: Pair) -> None:
    assert not pair.wire.is_over(0.0)
    pair.raw.close()
    assert pair.wire.is_over(0.0)
    with pytest.raises(ConnectionError, match="closed the connection"):
        pair.wire.send({"kind": "x"})
    assert pair.wire.receive() is None


def test_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "SEND_S", 0.05)
    pair = Pair()
    with pytest.raises(ConnectionError, match="closed the connection"):
        pair.wire.send({"kind": "x", "text": "x" * (8 << 20)})
    pair.raw.close()


def test_closing_wakes_who_receives_and_gives_the_descriptor_back(pair: Pair) -> None:
    ours = str(Path(f"/proc/self/fd/{pair.wire._sock.fileno()}").readlink())
    received: list[object] = []
    thread = threading.Thread(target=lambda: received.append(pair.wire.receive()))
    thread.start()
    pair.wire.close()
    thread.join()
    assert received == [None]
    assert ours not in links()


class TestOutbox:
    def test_it_sends_in_order_and_closes_descriptors(
        self, pair: Pair, files: list[int], tmp_path: Path
    ) -> None:
        outbox, other = SendQueue(pair.wire), pair.other()
        for i in range(100):
            outbox.put({"kind": "x", "i": i}, os.dup(files[0]) if i == 50 else None)
        for i in range(100):
            received = other.receive()
            assert received is not None
            assert received[0]["i"] == i
            assert len(received[1]) == (i == 50)
            for fd in received[1]:
                os.close(fd)
        outbox.close()
        outbox._thread.join()
        assert opened(tmp_path) == len(files)

    def test_a_trainer_that_does_not_read_keeps_nobody_waiting_and_is_cut_off(
        self, pair: Pair, files: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(outbox_module, "MOST", 50)
        outbox = SendQueue(pair.wire)
        for _ in range(60):
            outbox.put({"kind": "x", "text": "x" * 100_000}, os.dup(files[0]))
        outbox.close()
        outbox._thread.join()
        while pair.raw.recv(1 << 20):  # what had been sent, and then the end
            pass
        assert opened(tmp_path) == len(files)
