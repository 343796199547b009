"""What a stranger at the other end of a channel sends is refused as such, whatever it is."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Mapping

import pytest

from checkpointing.authenticated_channel import (
    KEY_BYTES,
    AuthenticatedChannel,
    ChannelHello,
    accept_channel,
    connect_channel,
    new_hello,
)
from checkpointing.errors import ServiceError

LOOPBACK = "127.0.0.1"
KEY = bytes(KEY_BYTES)
LONE_SURROGATE = "\ud800"  # a text of JSON that has no UTF-8


def frame(message: Mapping[str, object]) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("<BI", 0, len(body)) + body


@pytest.mark.parametrize("wrong", ["nonce", "proof"])
def test_a_listener_that_sends_no_text_does_not_know_the_key(wrong: str) -> None:
    answer: dict[str, object] = {"nonce": "00", "proof": "00", wrong: LONE_SURROGATE}
    with socket.create_server((LOOPBACK, 0)) as server:

        def play() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(1 << 16)
                sock.sendall(frame(answer))
                sock.recv(1 << 16)

        thread = threading.Thread(target=play)
        thread.start()
        hello = new_hello("generation", 0, 1, "shards")
        with pytest.raises(ServiceError, match="does not know the key"):
            connect_channel(LOOPBACK, server.getsockname()[1], KEY, hello, within_s=60.0)
        thread.join()


def test_a_caller_that_sends_no_text_does_not_know_the_key() -> None:
    here, there = socket.socketpair()
    with here, there:
        hello = vars(ChannelHello("generation", 0, 1, "shards", "00"))
        there.sendall(frame(hello) + frame({"proof": LONE_SURROGATE}))
        with pytest.raises(ServiceError, match="does not know the key"):
            accept_channel(here, lambda hello: KEY)


def test_a_connection_that_a_forked_process_forgets_goes_on() -> None:
    here, there = socket.socketpair()
    with here, there:
        AuthenticatedChannel(here.dup(), KEY, KEY).forget()
        ours, theirs = (AuthenticatedChannel(one, KEY, KEY) for one in (here, there))
        ours.send({"op": "ping"})
        assert theirs.receive() == {"op": "ping"}
