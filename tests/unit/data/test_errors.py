"""Errors of many shards and many attempts fit on a screen."""

from __future__ import annotations

from data.errors import FetchError, IndexingError, ShardError


def test_of_shards_that_cannot_be_indexed_each_has_a_line() -> None:
    tries = [f"{n} s, stat: refused" for n in range(27)]
    gone = FetchError("http://x/1.tar", "given up after 27 tries: refused", tries)
    assert len(str(gone).splitlines()) == 28
    _, first, second, _ = str(IndexingError([gone, ShardError("2.tar", 0, "cut")], 4)).splitlines()
    assert first == "  shard http://x/1.tar: given up after 27 tries: refused"
    assert "2.tar" in second
