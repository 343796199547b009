"""Who comes to a service's port without its key, or changes a byte on the way, gets nowhere."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from checkpointing.authenticated_channel import (
    KEY_BYTES,
    MAX_HELLO,
    AuthenticatedChannel,
    ChannelHello,
    connect_channel,
    new_hello,
)
from checkpointing.errors import ServiceError
from checkpointing.service.protocol.messages import dump_layout, dump_snapshot
from checkpointing.service.replication.replication_ring import ReplicationRing
from checkpointing.service.snapshots import RankSnapshot
from tests.integration.service.replicating_nodes import (
    LOOPBACK,
    await_held,
    held,
    join,
    of_node,
    peers,
    pulled,
)
from tests.integration.service.service_nodes import Nodes, content, layout, nodes_at, until

ROWS = 64


@pytest.fixture
def nodes(folder: Path) -> Nodes:
    return Nodes.start(nodes_at(folder / "store", linger_s=1.0), 1, rows=ROWS)


@pytest.fixture
def ring(nodes: Nodes) -> ReplicationRing:
    """With a snapshot of node a at node b."""
    found = join(nodes)
    nodes.save(1)
    await_held(nodes.configs["b"], 1, (0,))
    return found


def strangers(nodes: Nodes, node: str = "b") -> int:
    return int(peers(nodes.configs[node])["strangers"])


def assert_lives_on(nodes: Nodes, step: int) -> None:
    """What was there is there, and what comes now comes as before."""
    nodes.save(step)
    nodes.await_commit(step)
    await_held(nodes.configs["b"], step, (0,))
    old = nodes.trainers[0].generation
    assert np.array_equal(pulled(nodes.trainers[0], old, step, node=1), content(0, step, ROWS))
    nodes.close()


def knock(ring: ReplicationRing, data: bytes) -> bytes:
    """Send this to node b, and nothing more; what it answers."""
    with socket.create_connection((LOOPBACK, ring.nodes[1].port)) as sock:
        sock.settimeout(30.0)
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            return sock.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:  # it has hung up already
            return b""


def framed(body: bytes, length: int | None = None) -> bytes:
    return struct.pack("<BI", 0, len(body) if length is None else length) + body


GARBAGE = {
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": secrets.token_bytes(1 << 12),
    "empty": framed(b"{}"),
    "deep": framed(b"[" * 2000),
    "types": framed(b'{"generation": 1, "node": [], "to": null, "role": {}, "nonce": 2}'),
    "short": framed(b"{", length=MAX_HELLO),
    "long": framed(b"", length=MAX_HELLO + 1),
    "huge": framed(b"", length=0xFFFFFFFF),
    "kind": b"\1" + framed(b"{}")[1:],
}


def test_garbage_is_refused(nodes: Nodes, ring: ReplicationRing) -> None:
    for count, (name, data) in enumerate(GARBAGE.items(), 1):
        assert knock(ring, data) == b"", name
        until(lambda n=count: strangers(nodes) == n, f"{name} is counted")  # type: ignore[misc]
    assert_lives_on(nodes, 2)


def hello(ring: ReplicationRing, **changes: object) -> ChannelHello:
    return replace(new_hello(ring.generation.id, 0, 1, "origin"), **changes)  # type: ignore[arg-type]


def ping(ring: ReplicationRing, key: bytes, said: ChannelHello) -> None:
    link = connect_channel(LOOPBACK, ring.nodes[1].port, key, said)
    try:
        link.ask({"op": "ping"})
    finally:
        link.close()


WRONG: dict[str, dict[str, object]] = {
    "key": {},
    "generation": {"generation": "0" * 8},
    "node": {"node": 7},
    "itself": {"node": 1},
    "to": {"to": 0},
    "role": {"role": "x"},
    "protocol": {"protocol": 0},
}


def test_a_stranger_is_refused(nodes: Nodes, ring: ReplicationRing) -> None:
    for count, (name, changes) in enumerate(WRONG.items(), 1):
        key = ring.key if changes else secrets.token_bytes(KEY_BYTES)
        with pytest.raises((ConnectionError, ServiceError)):
            ping(ring, key, hello(ring, **changes))
        until(lambda n=count: strangers(nodes) == n, f"{name} is counted")  # type: ignore[misc]
    ping(ring, ring.key, hello(ring))
    assert_lives_on(nodes, 2)


def test_who_listens_without_the_key_is_refused(ring: ReplicationRing, nodes: Nodes) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:

        def play() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(1 << 16)
                sock.sendall(framed(b'{"nonce": "00", "proof": "' + b"0" * 64 + b'"}'))
                sock.recv(1 << 16)

        thread = threading.Thread(target=play)
        thread.start()
        with pytest.raises(ServiceError, match="does not know the key"):
            connect_channel(LOOPBACK, server.getsockname()[1], ring.key, hello(ring))
        thread.join()
    assert_lives_on(nodes, 2)


class Tampering:
    """Between a sender and node b: passes all on, but for what is done to one byte."""

    def __init__(self, port: int, at: int, cut: bool) -> None:
        """
        Args:
            at: of the bytes that go to b, which one.
            cut: break off there instead of flipping it.
        """
        self._at, self._cut = at, cut
        self._server = socket.create_server((LOOPBACK, 0))
        self.port = self._server.getsockname()[1]
        self._there = socket.create_connection((LOOPBACK, port))
        threading.Thread(target=self._pass, daemon=True).start()

    def _pass(self) -> None:
        here, _ = self._server.accept()
        threading.Thread(target=self._back, args=(here,), daemon=True).start()
        done = 0
        with suppress(OSError), here, self._there, self._server:
            while data := bytearray(here.recv(1 << 16)):
                if done <= self._at < done + len(data):
                    if self._cut:
                        self._there.sendall(data[: self._at - done])
                        break
                    data[self._at - done] ^= 1
                self._there.sendall(data)
                done += len(data)

    def _back(self, here: socket.socket) -> None:
        with suppress(OSError):
            while data := self._there.recv(1 << 16):
                here.sendall(data)
        with suppress(OSError):
            here.shutdown(socket.SHUT_RDWR)


def put(link: AuthenticatedChannel, snapshot: RankSnapshot, cells: bytes) -> None:
    link.ask(
        {"op": "put", "snapshot": dump_snapshot(snapshot), "layout": dump_layout(snapshot.layout)}
    )
    link.send_bytes(cells)
    link.receive()


def put_two(port: int, ring: ReplicationRing, snapshot: RankSnapshot, cells: bytes) -> None:
    """The second, in case that the byte which is changed is behind the first one."""
    link = connect_channel(LOOPBACK, port, ring.key, hello(ring))
    try:
        put(link, snapshot, cells)
        put(link, replace(snapshot, step=6), cells)
    finally:
        link.close()


@pytest.mark.parametrize("cut", [False, True], ids=["flipped", "truncated"])
def test_no_changed_byte_gets_in(nodes: Nodes, ring: ReplicationRing, cut: bool) -> None:
    trainer = nodes.trainers[0]
    cells = content(0, 5, ROWS).tobytes()
    snapshot = RankSnapshot(trainer.generation, 0, 5, 0, layout(0, 2, ROWS))
    size = 2000 + len(cells)
    rng = np.random.default_rng(int(cut))
    for at in [0, 6, *(int(n) for n in rng.integers(0, size, 6))]:
        middle = Tampering(ring.nodes[1].port, at, cut)
        with pytest.raises((ConnectionError, ServiceError)):
            put_two(middle.port, ring, snapshot, cells)
        assert 6 not in held(nodes.configs["b"]).get(0, [])
    if 5 in held(nodes.configs["b"]).get(0, []):  # it was whole when a byte after it was changed
        old = trainer.generation
        assert np.array_equal(pulled(trainer, old, 5, node=1), content(0, 5, ROWS))
    assert_lives_on(nodes, 7)


def test_the_key_is_in_no_log_and_on_no_command_line(
    nodes: Nodes, ring: ReplicationRing, folder: Path
) -> None:
    pids = [peers_pid(nodes, name) for name in "ab"]
    for trainer in nodes.trainers:
        with pytest.raises(ServiceError, match="not a valid ring of nodes"):
            trainer.client.ask(
                "ring",
                generation=asdict(ring.generation),
                nodes=[{"key": ring.key.hex()}],
                me=0,
                key=ring.key.hex(),
            )
    files = [path.read_bytes() for path in (folder / "rt").glob("*.log")]
    shown = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
    shown += [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]
    assert len(files) == 2
    assert all(ring.key.hex().encode() not in text for text in (*files, *shown))
    assert ring.key.hex() not in repr(ring)
    assert repr(ring.key) not in repr(ring)
    assert_lives_on(nodes, 2)


def peers_pid(nodes: Nodes, name: str) -> int:
    return int(of_node(nodes, name)[0].client.status()["pid"])
