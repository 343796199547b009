"""At which address nodes share their caches."""

import pytest

from hpckit.trainer.batches.cache_peers import address_of_interface

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
