"""Errors of many shards and many attempts fit on a screen."""

from __future__ import annotations

from data.errors import (
    BrokenTarError,
    DataError,
    FetchError,
    IndexFileError,
    IndexingError,
    SampleError,
    ShardError,
)


def test_of_shards_that_cannot_be_indexed_each_has_a_line() -> None:
    tries = [f"{n} s, stat: refused" for n in range(27)]
    gone = FetchError("http://x/1.tar", "given up after 27 tries: refused", tries)
    assert len(str(gone).splitlines()) == 28
    _, first, second, _ = str(IndexingError([gone, ShardError("2.tar", 0, "cut")], 4)).splitlines()
    assert first == "  shard http://x/1.tar: given up after 27 tries: refused"
    assert "2.tar" in second


def test_no_error_shows_the_secrets_of_a_url() -> None:
    url = "https://me:abc@h/x.tar?X-Amz-Signature=abc"
    errors: list[DataError] = [
        ShardError(url, 0, "cut"),
        BrokenTarError(url, 0, "cut"),
        SampleError(0, "0", url, "bad"),
        IndexFileError(url, "damaged"),
    ]
    for error in errors:
        assert "https://h/x.tar?…" in str(error)
        assert "abc" not in str(type(error)(*error.args)) + repr(error)
    assert str(ShardError("/a?b.tar", 0, "cut")) == "shard /a?b.tar, offset 0: cut"
