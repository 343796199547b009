"""Nodes that share their caches: each shard comes once from its source, and nothing that happens to
a node costs the others more than a fetch."""

from __future__ import annotations

import logging
import pickle
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from checkpointing.authenticated_channel import connect_channel, new_hello
from checkpointing.errors import ServiceError
from data import DataError, NodeStore, open_dataset
from data.cache import cache_maintenance
from data.cache.files.cache_entry import CacheEntry, ShardRef
from data.cache.files.cache_folder import CacheFolder
from data.cache.peers.cache_peers import ALL_ADDRESSES, CachePeers
from data.cache.peers.peer_group import PeerPatience
from data.cache.peers.shard_server import PIECE, ROLE
from tests.integration.data.peer_node_process import NodeProcess
from tests.integration.data.peer_nodes import LOOPBACK, PATIENT, LocalExchange, connected
from tests.integration.data.shard_reader import body_of
from tests.integration.service.service_nodes import until
from tests.services.range_server import RangeServer
from tests.stopped_processes import stop

SIZE = 3 * PIECE
NAMES = [f"shard-{i:06d}.tar" for i in range(4)]
NODES = 3


@pytest.fixture
def refs(server: RangeServer) -> list[ShardRef]:
    return [
        ShardRef(server.put(f"/{name}", body_of(name, SIZE)), SIZE, _hash(body_of(name, SIZE)))
        for name in NAMES
    ]


@pytest.fixture
def opened() -> Iterator[list[CachePeers]]:
    """What is closed after the test."""
    peers: list[CachePeers] = []
    yield peers
    for one in peers:
        one.close()


def stores_of(
    tmp_path: Path, opened: list[CachePeers], count: int = NODES, budget: int = 10**9
) -> list[NodeStore]:
    folders = [tmp_path / f"node{number}" for number in range(count)]
    peers = connected(folders)
    opened += peers
    return [
        NodeStore(folder, budget, free_reserve=0, peers=one)
        for folder, one in zip(folders, peers, strict=True)
    ]


def fetch(store: NodeStore, refs: Sequence[ShardRef]) -> None:
    with ThreadPoolExecutor(len(refs)) as pool:
        assert all(pool.map(lambda ref: store.prefetch(ref, when_s=0.0), refs))


def assert_right(store: NodeStore, refs: Sequence[ShardRef]) -> None:
    for ref in refs:
        name = ref.url.rpartition("/")[2]
        with store.open(ref) as shard:
            assert shard.local
            assert shard.pread(0, SIZE) == body_of(name, SIZE)


def shard_file(store: NodeStore, ref: ShardRef) -> Path:
    entry = CacheEntry.indexed(ref)
    assert entry is not None
    return CacheFolder(store.folder).path(entry, "shard")


def damage(store: NodeStore, ref: ShardRef) -> None:
    """Change one byte of a shard that was verified, as a disk does."""
    path = shard_file(store, ref)
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(SIZE // 2)
        byte = file.read(1)
        file.seek(SIZE // 2)
        file.write(bytes([byte[0] ^ 1]))
    path.chmod(mode)


def test_each_shard_comes_once_from_its_source(
    server: RangeServer, refs: list[ShardRef], tmp_path: Path, opened: list[CachePeers]
) -> None:
    stores = stores_of(tmp_path, opened)
    with ThreadPoolExecutor(NODES) as pool:
        list(pool.map(lambda store: fetch(store, refs), stores))
    assert sorted(server.streams) == [(f"/{name}", 0) for name in NAMES]
    fetched = sum(store.metrics.bytes_fetched for store in stores)
    from_peers = sum(store.metrics.bytes_from_peers for store in stores)
    assert (fetched, from_peers) == (SIZE * len(NAMES), SIZE * len(NAMES) * (NODES - 1))
    until(
        lambda: sum(one.bytes_sent for one in opened) == from_peers,
        "the bytes that were sent are counted",
    )
    for store in stores:
        assert_right(store, refs)
        assert store.metrics.peer_failures == 0


def test_a_shard_is_passed_on_while_it_is_fetched(
    server: RangeServer, tmp_path: Path, opened: list[CachePeers]
) -> None:
    go_on, body = threading.Event(), body_of(NAMES[0], SIZE)
    url = server.put("/held.tar", body, held_from=PIECE, go_on=go_on)
    ref = ShardRef(url, SIZE, _hash(body))
    stores = stores_of(tmp_path, opened, 2)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(store.prefetch, ref, when_s=0.0) for store in stores]
        until(
            lambda: any(store.metrics.bytes_from_peers for store in stores),
            "a piece has come from a peer",
        )
        go_on.set()
        assert all(one.result(60) for one in done)
    assert server.streams == [("/held.tar", 0)]


@pytest.mark.parametrize("is_hash_known", [True, False])
def test_wrong_bytes_of_a_node_are_fetched_from_the_source(
    server: RangeServer,
    refs: list[ShardRef],
    tmp_path: Path,
    opened: list[CachePeers],
    caplog: pytest.LogCaptureFixture,
    is_hash_known: bool,
) -> None:
    """Without a hash in the index, what the node noted when it fetched the shard is compared."""
    first, second = stores_of(tmp_path, opened, 2)
    ref = refs[0] if is_hash_known else replace(refs[0], hash=None)
    assert first.prefetch(ref, when_s=0.0)
    (path,) = first.folder.glob("*.shard")
    mode, body = path.stat().st_mode, bytearray(path.read_bytes())
    body[SIZE // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(body))
    path.chmod(mode)
    assert second.prefetch(ref, when_s=0.0)
    with second.open(ref) as shard:
        assert shard.pread(0, SIZE) == body_of(NAMES[0], SIZE)
    metrics = second.metrics
    assert (metrics.bytes_from_peers, metrics.bytes_fetched) == (SIZE, SIZE)
    assert (metrics.peer_failures, metrics.quarantined) == (1, 0)
    assert "other nodes of the job have sent it" in caplog.text
    assert not path.exists()
    assert list((first.folder / "quarantine").iterdir())


@pytest.mark.parametrize("is_hash_known", [True, False])
def test_what_a_node_sent_of_a_shard_before_it_failed_is_used_if_it_can_be_verified(
    server: RangeServer, tmp_path: Path, opened: list[CachePeers], is_hash_known: bool
) -> None:
    """Without a hash in the index, it could be verified only by what the node noted at its end."""
    go_on, body = threading.Event(), body_of(NAMES[0], SIZE)
    url = server.put("/held.tar", body, held_from=PIECE, go_on=go_on)
    ref = ShardRef(url, SIZE, _hash(body) if is_hash_known else None)
    first, second = stores_of(tmp_path, opened, 2)
    with ThreadPoolExecutor(2) as pool:
        try:
            done = [pool.submit(first.prefetch, ref, when_s=0.0)]
            until(lambda: len(server.streams) == 1, "the source is asked")
            done.append(pool.submit(second.prefetch, ref, when_s=0.0))
            until(lambda: second.metrics.bytes_from_peers > 0, "a piece has come from the peer")
            opened[0].close()
            until(lambda: len(server.streams) == 2, "the source is asked again")
        finally:
            go_on.set()
        assert all(one.result(60) for one in done)
    come = second.metrics.bytes_from_peers
    assert server.streams[1] == ("/held.tar", come if is_hash_known else 0)
    with second.open(ref) as shard:
        assert shard.pread(0, SIZE) == body


def test_a_download_from_a_node_that_waits_ends_with_its_store(
    server: RangeServer, tmp_path: Path, opened: list[CachePeers]
) -> None:
    go_on, body = threading.Event(), body_of(NAMES[0], SIZE)
    url = server.put("/held.tar", body, held_from=PIECE, go_on=go_on)
    ref = ShardRef(url, SIZE, _hash(body))
    first, second = stores_of(tmp_path, opened, 2)
    with ThreadPoolExecutor(2) as pool:
        try:
            whole = pool.submit(first.prefetch, ref, when_s=0.0)
            until(lambda: len(server.streams) == 1, "the source is asked")
            ended = pool.submit(second.prefetch, ref, when_s=0.0)
            until(lambda: second.metrics.bytes_from_peers > 0, "a piece has come from the peer")
            second.close()
            with pytest.raises(DataError, match="the store was closed"):
                ended.result(60)
        finally:
            go_on.set()
        assert whole.result(60)


def test_a_busy_node_costs_a_fetch_and_is_asked_again(
    refs: list[ShardRef], tmp_path: Path, opened: list[CachePeers]
) -> None:
    first, second = stores_of(tmp_path, opened, 2)
    assert first.prefetch(refs[0], when_s=0.0)
    busy = opened[0]._server
    assert busy is not None
    busy._sending, free = threading.Semaphore(0), busy._sending
    assert second.prefetch(refs[0], when_s=0.0)
    assert (second.metrics.bytes_fetched, second.metrics.peer_failures) == (SIZE, 0)
    busy._sending = free
    assert cache_maintenance.prune(second.folder, 0) == SIZE
    assert second.prefetch(refs[0], when_s=0.0)
    assert second.metrics.bytes_from_peers == SIZE
    assert_right(second, refs[:1])


def test_a_reader_never_gets_unverified_bytes_of_another_node(
    refs: list[ShardRef], tmp_path: Path, opened: list[CachePeers]
) -> None:
    first, second = stores_of(tmp_path, opened, 2)
    assert first.prefetch(refs[0], when_s=0.0)
    damage(first, refs[0])
    with second.open(refs[0]) as shard:
        assert shard.pread(SIZE // 2, 1) == body_of(NAMES[0], SIZE)[SIZE // 2 : SIZE // 2 + 1]
    second.settle()  # raises if bytes were returned that then proved wrong


def test_what_a_node_has_evicted_comes_from_the_source(
    server: RangeServer, refs: list[ShardRef], tmp_path: Path, opened: list[CachePeers]
) -> None:
    first, second = stores_of(tmp_path, opened, 2)
    fetch(first, refs[:2])
    assert cache_maintenance.prune(first.folder, 0) == 2 * SIZE
    fetch(second, refs[:2])
    assert_right(second, refs[:2])
    assert (second.metrics.bytes_from_peers, second.metrics.peer_failures) == (0, 0)
    assert len(server.streams) == 4


def test_a_new_generation_finds_what_the_caches_have(
    server: RangeServer, refs: list[ShardRef], tmp_path: Path, opened: list[CachePeers]
) -> None:
    """After an elastic change, a new node gets everything from those that stayed."""
    for store in stores_of(tmp_path, opened, 2):
        fetch(store, refs)
    for one in opened:
        one.close()
    *_, newcomer = stores_of(tmp_path, opened, 3)
    fetch(newcomer, refs)
    assert_right(newcomer, refs)
    assert len(server.streams) == len(refs)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_node_that_is_gone_or_stopped_costs_a_fetch(
    server: RangeServer,
    refs: list[ShardRef],
    tmp_path: Path,
    opened: list[CachePeers],
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    """It has all shards, and tracks some of them."""
    exchange, process = LocalExchange(2), NodeProcess.start(tmp_path / "other", "other")
    try:
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(process.take_part, exchange.of(0))
            folder = tmp_path / "mine"
            mine = CachePeers.connect(
                folder, exchange.of(1), address=LOOPBACK, node="mine", patience=PATIENT
            )
            done.result(60)
        opened.append(mine)
        store = NodeStore(folder, 10**9, free_reserve=0, peers=mine)
        process.fetch(refs)
        assert process.receive()["bytes_fetched"] == SIZE * len(refs)
        fetch(store, refs[:1])
        assert (store.metrics.bytes_fetched, store.metrics.bytes_from_peers) == (0, SIZE)
        if how == "killed":
            process.end()
        else:
            stop(process.process.pid)
            assert mine.client is not None
            mine.client.patience = PeerPatience(connect_s=0.5, suspect_s=600.0)
        fetch(store, refs)
        assert_right(store, refs)
        assert store.metrics.bytes_fetched == SIZE * (len(refs) - 1)
        assert "the cache of node other is not used" in caplog.text
    finally:
        process.end()


def test_strangers_get_nothing(
    refs: list[ShardRef],
    tmp_path: Path,
    opened: list[CachePeers],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    first, second = stores_of(tmp_path, opened, 2)
    fetch(first, refs)
    client = opened[0].client
    assert client is not None
    group = client.group
    port = group.nodes[0].port
    assert client.group.nodes[0].address == LOOPBACK
    with pytest.raises(ConnectionRefusedError):  # the server listens at its own address alone
        socket.create_connection(("127.0.0.2", port), 5)
    with socket.create_connection((LOOPBACK, port)) as sock:
        sock.settimeout(30.0)
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with suppress(OSError):  # the server may have closed the connection already
            sock.shutdown(socket.SHUT_WR)
        assert _rest(sock) == b""
    other = secrets.token_bytes(32)
    for hello, key in [
        (new_hello(group.id, 1, 0, ROLE), other),
        (new_hello("another", 1, 0, ROLE), group.key),
        (new_hello(group.id, 1, 0, "pull"), group.key),
        (new_hello(group.id, 9, 0, ROLE), group.key),
    ]:
        with pytest.raises((ServiceError, ConnectionError)):
            connect_channel(LOOPBACK, port, key, hello)
    channel = connect_channel(LOOPBACK, port, group.key, new_hello(group.id, 1, 0, ROLE))
    channel._sending = other  # as if a byte was changed on its way
    channel.send({"op": "get", "shard": shard_file(first, refs[0]).stem, "at": 0})
    with pytest.raises((ServiceError, ConnectionError)):
        channel.receive()
    fetch(second, refs)  # those who belong to it are served as before
    assert second.metrics.bytes_from_peers == SIZE * len(refs)
    shown = caplog.text + repr(group) + repr(opened) + repr(vars(opened[0]))
    assert group.key.hex() not in shown
    assert repr(group.key) not in shown


def test_a_request_names_shards_only(
    refs: list[ShardRef], tmp_path: Path, opened: list[CachePeers]
) -> None:
    first, _ = stores_of(tmp_path, opened, 2)
    fetch(first, refs[:1])
    (tmp_path / "secret.shard").write_bytes(b"secret")
    client = opened[1].client
    assert client is not None
    channel = client.connect(0)
    stem = shard_file(first, refs[0]).stem
    wrong: list[dict[str, Any]] = [
        {"op": "get", "shard": "../secret", "at": 0},
        {"op": "get", "shard": stem, "at": -1},
        {"op": "get", "shard": stem, "at": SIZE + 1},
        {"op": "get", "shard": stem, "at": "x"},
        {"op": "get", "shard": 7, "at": 0},
        {"op": "hold", "shards": 7},
        {"op": "get", "shard": stem, "at": float("inf")},
        {"op": "locate", "shard": stem, "failed": None, "avoided": []},
        {"op": "close"},
        {},
    ]
    for message in wrong:
        channel.send(message)
        assert "refused" in channel.receive()
    channel.close()


@pytest.mark.parametrize("address", ALL_ADDRESSES)
def test_no_server_listens_at_all_interfaces(address: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the one address"):
        CachePeers.connect(tmp_path, lambda value: [value], address=address, node="a")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("192.0.2.1", "cannot listen at 192.0.2.1"),
        ("0", "all network interfaces"),  # as the C library reads it
        (f"{'a' * 64}.example", "cannot listen at"),
    ],
)
def test_nodes_go_on_alone_if_one_cannot_listen(
    refs: list[ShardRef],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    wrong: str,
    problem: str,
) -> None:
    exchange = LocalExchange(2)

    def connect(number: int) -> CachePeers:
        address = (LOOPBACK, wrong)[number]
        folder = tmp_path / str(number)
        return CachePeers.connect(folder, exchange.of(number), address=address, node=f"n{number}")

    with ThreadPoolExecutor(2) as pool:
        for one in pool.map(connect, range(2)):
            assert one.client is None
            assert problem in (one.problem or "")
            store = NodeStore(one.folder, 10**9, free_reserve=0, peers=one)
            fetch(store, refs[:1])
    assert "do not share their caches" in caplog.text


def test_one_process_of_a_node_answers_for_all(
    server: RangeServer, refs: list[ShardRef], tmp_path: Path, opened: list[CachePeers]
) -> None:
    folders = [tmp_path / "a", tmp_path / "a", tmp_path / "b"]
    opened += connected(folders, nodes=["a", "a", "b"])
    clients = [one.client for one in opened]
    assert [client and client.group.me for client in clients] == [0, 0, 1]
    again = pickle.loads(pickle.dumps(opened[2]))  # as for reader processes
    for peers in (opened[1], again):
        store = NodeStore(peers.folder, 10**9, free_reserve=0, peers=peers)
        fetch(store, refs)
        assert_right(store, refs)
    assert len(server.streams) == len(refs)


def test_peers_need_the_folder_of_their_cache(
    local: Path, tmp_path: Path, opened: list[CachePeers]
) -> None:
    opened += connected([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(DataError, match="the same folder"):
        NodeStore(tmp_path / "c", 10**9, peers=opened[0])
    with pytest.raises(DataError, match="cache=FOLDER"):
        open_dataset(local, peers=opened[0])


def _hash(body: bytes) -> str:
    return blake3(body).hexdigest()


def _rest(sock: socket.socket) -> bytes:
    try:
        return sock.recv(1 << 16)
    except ConnectionError:
        return b""
