"""At which address a node is reached."""

import pytest

from checkpointing.ranks.peer_address import (
    INTERFACE,
    LOOPBACK,
    NetworkLocation,
    address_of_interface,
    network_location,
    route,
)
from checkpointing.ranks.rank_network import _hosts

ADDRESSES = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["fe80::1%eth0", "fd00::7", "192.0.2.7"],
    "ib0": ["fe80::2%ib0"],
    "ib1": ["fd00::8"],
    "down0": [],
}


@pytest.mark.parametrize(
    ("names", "address"),
    [
        ("eth0", "192.0.2.7"),
        ("eth", "192.0.2.7"),
        ("ib0", None),
        ("ib", "fd00::8"),
        ("down0,eth0", "192.0.2.7"),
        ("hsn0", None),
    ],
)
def test_the_address_of_an_interface(names: str, address: str | None) -> None:
    assert address_of_interface(names, ADDRESSES) == address


def test_the_interface_of_gloo_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "node0.invalid")
    monkeypatch.setenv(INTERFACE, "lo")
    assert network_location().routed == LOOPBACK


def location(configured: str | None = None, routed: str | None = None) -> NetworkLocation:
    return NetworkLocation("node", "network", configured, routed)


@pytest.mark.parametrize(
    ("here", "env", "host"),
    [
        (location("192.0.2.9", "192.0.2.7"), {}, "192.0.2.9"),
        (location(None, "192.0.2.7"), {"MASTER_ADDR": "node0"}, "192.0.2.7"),
        (location(), {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "me"}, LOOPBACK),
        (location(), {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "me"}, ""),
        (location(), {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, LOOPBACK),
        (location(), {"MASTER_ADDR": "127.0.0.1"}, LOOPBACK),
    ],
)
def test_ranks_listen_where_others_reach_them(
    here: NetworkLocation, env: dict[str, str], host: str
) -> None:
    """Rank 0's node may have a loopback address for its own name: others reach it by that name."""
    assert _hosts(here, env) == [(host, host)]


def test_without_a_launcher_the_name_of_the_machine_decides() -> None:
    *_, last = _hosts(location(), {})
    assert last == (LOOPBACK, LOOPBACK)


@pytest.mark.parametrize("name", ["n" * 64, "two..dots"])
def test_there_is_no_route_to_a_name_that_no_host_can_have(name: str) -> None:
    """A host may have a name of 64 letters, for which Python looks up no address."""
    assert route(name) is None
