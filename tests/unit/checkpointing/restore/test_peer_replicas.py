"""Which nodes make a ring, and at which addresses they meet."""

from __future__ import annotations

import pytest

from checkpointing.errors import ServiceError
from checkpointing.ranks.peer_address import LOOPBACK, NetworkLocation, choose_address, route
from checkpointing.restore.peer_replicas import PeerEndpoint, check_replica_count, ring_of, why_not


def standing(
    node: str, network: str = "", configured: str | None = None, routed: str | None = None
) -> NetworkLocation:
    return NetworkLocation(node, network or node, configured, routed)


def test_what_is_told_counts_most() -> None:
    found = [
        standing("a", configured="10.1.1.1", routed="10.0.0.1"),
        standing("b", routed="10.0.0.2"),
    ]
    assert [choose_address(found, rank) for rank in (0, 1)] == ["10.1.1.1", "10.0.0.2"]


def test_nodes_that_share_a_loopback_use_it() -> None:
    found = [standing("a", "n", routed="10.0.0.1"), standing("b", "n")]
    assert [choose_address(found, rank) for rank in (0, 1)] == [LOOPBACK, LOOPBACK]


def test_no_way_to_another_node_is_refused_with_the_remedy() -> None:
    with pytest.raises(ServiceError, match=r"node a: .*HPCKIT_PEER_ADDRESS"):
        choose_address([standing("a"), standing("b", routed="no.such.host.invalid")], 0)


def test_a_way_over_the_loopback_is_none() -> None:
    assert route("127.0.0.1") is None
    assert route("no.such.host.invalid") is None


def test_a_ring_is_in_the_order_of_first_ranks() -> None:
    names = ["x", "x", "b", "b", "a"]
    everybody = [
        PeerEndpoint(standing(name), f"10.0.0.{rank}", rank) for rank, name in enumerate(names)
    ]
    nodes, me = ring_of(everybody, 3)
    assert [(node.name, node.address, node.port, node.ranks) for node in nodes] == [
        ("x", "10.0.0.0", 0, (0, 1)),
        ("b", "10.0.0.2", 2, (2, 3)),
        ("a", "10.0.0.4", 4, (4,)),
    ]
    assert me == 1


def test_why_there_are_no_replicas() -> None:
    there = [PeerEndpoint(standing("a"), "h", 1), PeerEndpoint(standing("b"), "h", 1)]
    assert why_not(there) is None
    broken = PeerEndpoint(standing("b"), problem="rank 1: no")
    assert why_not([there[0], broken]) == "rank 1: no"


@pytest.mark.parametrize(
    ("replicas", "staging", "why"),
    [
        (2, "slots", "0 or 1"),
        (-1, "slots", "0 or 1"),
        (True, "slots", "0 or 1"),
        (1, "buckets", "slots"),
    ],
)
def test_what_cannot_be_is_refused(replicas: int, staging: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_replica_count(replicas, staging)
    check_replica_count(0, "buckets")
    check_replica_count(1, "slots")
