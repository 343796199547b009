"""A barrier of known nodes, at a real store; nodes are threads."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.utils.store import barrier

from hpckit.agent.rendezvous_store import RendezvousStore
from hpckit.ipc.process_environment import STORE_TOKEN
from hpckit.ipc.rendezvous_names import participants
from hpckit.trainer.torchrun.rendezvous_handler import KnownNodesRendezvous, register
from hpckit.trainer.torchrun.rendezvous_store_client import RendezvousStoreClient, StoreConnection
from tests.unit.hpckit.specs_and_processes import until

HOST = "127.0.0.1"
Node = Callable[..., KnownNodesRendezvous]


@pytest.fixture
def server() -> Iterator[RendezvousStore]:
    with RendezvousStore(HOST) as store:
        yield store


def connected(server: RendezvousStore) -> StoreConnection:
    return StoreConnection(server.host, server.port, server.token)


@pytest.fixture
def node(server: RendezvousStore) -> Node:
    def make(
        place: int, nodes: int = 2, run_id: str = "gpt-g1", within_s: float = 60
    ) -> KnownNodesRendezvous:
        within = timedelta(seconds=within_s)
        return KnownNodesRendezvous(
            connected(server), run_id, place, nodes, f"10.0.0.{place}", within
        )

    return make


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def meet(
    threads: ThreadPoolExecutor, nodes: list[KnownNodesRendezvous]
) -> list[tuple[int, int, str, int]]:
    """What each is told: its rank, how many there are, where the first one is."""

    def told(info: RendezvousInfo) -> tuple[int, int, str, int]:
        at = info.bootstrap_store_info
        assert at is not None
        return info.rank, info.world_size, at.master_addr, at.master_port

    return [told(info) for info in threads.map(KnownNodesRendezvous.next_rendezvous, nodes)]


def test_ranks_are_those_of_the_places_in_every_round(
    node: Node, threads: ThreadPoolExecutor
) -> None:
    nodes = [node(place, 3) for place in (2, 0, 1)]
    for _ in range(3):
        found = meet(threads, nodes)
        assert [told[0] for told in found] == [2, 0, 1]
        assert {told[1:3] for told in found} == {(3, "10.0.0.0")}
        assert len({told[3] for told in found}) == 1, "one port"


def test_nobody_goes_on_before_the_last_has_come(node: Node, threads: ThreadPoolExecutor) -> None:
    first, last = node(0), node(1)
    waits: Future[RendezvousInfo] = threads.submit(first.next_rendezvous)
    time.sleep(0.2)
    assert not waits.done()
    last.next_rendezvous()
    assert waits.result().rank == 0


def test_who_failed_is_waited_for_by_the_others(node: Node, threads: ThreadPoolExecutor) -> None:
    nodes = [node(0), node(1)]
    meet(threads, nodes)
    assert [each.num_nodes_waiting() for each in nodes] == [0, 0]
    failed = threads.submit(nodes[1].next_rendezvous)
    while not nodes[0].num_nodes_waiting():
        time.sleep(0.01)
    nodes[0].next_rendezvous()
    assert failed.result().rank == 1
    assert [each.num_nodes_waiting() for each in nodes] == [0, 0]


def test_generations_do_not_meet(node: Node, threads: ThreadPoolExecutor) -> None:
    stale = node(1, run_id="gpt-g1", within_s=0.3)
    with pytest.raises(RendezvousConnectionError, match="round 1"):
        meet(threads, [node(0, run_id="gpt-g2", within_s=0.3), stale])


def test_a_store_that_is_gone_is_an_error() -> None:
    with RendezvousStore(HOST) as store:
        it = KnownNodesRendezvous(connected(store), "gpt-g1", 0, 1, HOST, timedelta(seconds=60))
        assert it.next_rendezvous().world_size == 1
        assert it.num_nodes_waiting() == 0
    with pytest.raises(RendezvousConnectionError):
        it.num_nodes_waiting()
    with pytest.raises(RendezvousConnectionError, match="round 2"):
        it.next_rendezvous()
    with pytest.raises(DistNetworkError, match=f"{HOST}:{store.port}"):
        connected(store)


def test_the_barrier_of_torchrun(node: Node, threads: ThreadPoolExecutor) -> None:
    """By which nodes that are done wait for the others; it names who does not come."""
    infos = list(threads.map(KnownNodesRendezvous.next_rendezvous, [node(0), node(1)]))

    def wait(place: int, within_s: float = 60) -> None:
        store = infos[place].store
        barrier(store, 2, "end", within_s, place, str, 0.1)
        assert isinstance(store, RendezvousStoreClient)
        assert store.timeout == timedelta(seconds=60), "as before"

    list(threads.map(wait, range(2)))
    with pytest.raises(DistStoreError, match="missing_ranks=\\[1\\]"):
        barrier(infos[0].store, 2, "again", 1.0, 0, str, 1.0)


def test_a_store_of_torchs(server: RendezvousStore) -> None:
    store = RendezvousStoreClient(connected(server), "a/", timedelta(seconds=60))
    other = RendezvousStoreClient(connected(server), "b/", timedelta(seconds=0.1))
    store.multi_set(["x", "y"], [b"1", "\N{SNOWMAN}"])
    assert store.multi_get(["y", "x"]) == ["\N{SNOWMAN}".encode(), b"1"]
    assert store.get("x") == b"1"
    assert [store.add("x", 4), store.add("new", -1)] == [5, -1]
    with pytest.raises(DistStoreError, match=r"within 0\.1 s"):
        other.get("x")
    other.set_timeout(timedelta(seconds=60))
    other.set("x", "late")
    assert other.get("x") == b"late", "not the answer to what was given up"
    with pytest.raises(DistStoreError, match=r"0\.05"):
        store.wait(["z"], timedelta(seconds=0.05))


def test_torchrun_has_it_by_its_name(
    server: RendezvousStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_TOKEN, server.token)
    register()
    register()  # again, as in a fork of a fork
    parameters = RendezvousParameters(
        "hpckit", f"{HOST}:{server.port}", "gpt-g1", 1, 1, HOST, place="0", join_timeout="60"
    )
    found = get_rendezvous_handler(parameters)
    assert STORE_TOKEN not in os.environ, "workers inherit it"
    assert found.get_run_id() == "gpt-g1"
    assert found.next_rendezvous().rank == 0
    assert found.shutdown()
    assert not found.is_closed()
    assert server.disconnected() == []
    del found  # and the connection with it, as at the end of a process
    until(lambda: participants(server.disconnected(), "gpt", 1) == [0])
