"""Addresses of many shards in one column."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data.index.shard_urls import ShardUrls

NAMES = st.text("abc", min_size=1, max_size=4)


def urls(stored: list[str]) -> ShardUrls:
    """Of a manifest in /shards."""
    encoded = [name.encode() for name in stored]
    at = np.concatenate([[0], np.cumsum([len(name) for name in encoded], dtype=np.int64)])
    return ShardUrls(at, np.frombuffer(b"".join(encoded), np.uint8), "/shards/")


@given(st.lists(NAMES, max_size=300), st.lists(NAMES, max_size=6), st.booleans())
def test_what_is_no_shard_is_told_whatever_the_order(
    stored: list[str], asked: list[str], are_sorted: bool
) -> None:
    shards = urls(sorted(stored) if are_sorted else stored)
    paths = [f"/shards/{name}" for name in asked]
    assert shards.without(paths) == [path for path in paths if path[8:] not in stored]


def test_a_few_of_many_in_order_are_found_without_a_look_at_all() -> None:
    shards, looked = urls([f"{number:05d}.tar" for number in range(20_000)]), 0

    class Counted(ShardUrls):
        def _absolute(self, stored: bytes) -> str:
            nonlocal looked
            looked += 1
            return super()._absolute(stored)

    shards.__class__ = Counted
    assert shards.without(["/shards/00000.tar", "/shards/19999.tar"]) == []
    assert looked < 100
