"""Checksums of what members hold: the same however the bytes come, and in every index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import IndexFileError
from data.index.shard import sidecar
from data.index.shard.shard_index import ShardIndex, checked
from data.index.shard.shard_scan import StreamedShardIndexer, scan_shard
from data.index.tar.content_checksums import ContentSums, content_sum
from tests.unit.data.tars import Files, tar_bytes, write_tar

FILES: Files = [
    ("a.txt", b"12"),
    ("README", b"of no sample"),
    ("a.json", b""),
    ("b.txt", bytes(range(256)) * 40),
    ("b.json", b"{}"),
    ("c.txt", b""),
]
SUMS = [content_sum(content) for name, content in FILES if name != "README"]


def test_they_are_the_low_bits_of_xxh3() -> None:
    """Of the empty text and of b"a", as xxHash's own test vectors have them."""
    assert content_sum(b"") == 0x2D06800538D394C2 & 0xFFFFFFFF
    assert content_sum(b"a") == 0xE6C632B61E964E1F & 0xFFFFFFFF


@given(st.lists(st.integers(1, 15_000), max_size=12))
def test_however_the_bytes_come(steps: list[int]) -> None:
    content, passing = tar_bytes(FILES), StreamedShardIndexer("s.tar")
    at = 0
    for step in [*steps, len(content)]:
        passing.feed(memoryview(content)[at : at + step])
        at += step
    assert passing.finish().columns["content"].tolist() == SUMS


@given(st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=50)), max_size=8), st.data())
def test_of_members_anywhere(parts: list[tuple[int, bytes]], data: st.DataObject) -> None:
    """Gaps between them or none, and members that are empty."""
    content, members = b"", []
    for gap, member in parts:
        content += bytes(gap)
        members.append((len(content), len(member)))
        content += member
    content += bytes(20)
    sums, at = ContentSums(members), 0
    while at < len(content):
        step = data.draw(st.integers(1, 30))
        sums.feed(content[at : at + step])
        at += step
    assert sums.column().tolist() == [content_sum(member) for _, member in parts]


def test_an_index_has_them_if_all_bytes_were_read(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", FILES)
    assert not scan_shard(path).has_content_sums
    index = scan_shard(path, hash=True)
    assert index.columns["content"].tolist() == SUMS
    kept = sidecar.from_bytes(sidecar.to_bytes(index), "here")
    assert kept.columns["content"].tolist() == SUMS
    assert kept.digest == scan_shard(path).digest


def test_other_numbers_of_them_are_refused(tmp_path: Path) -> None:
    index = scan_shard(write_tar(tmp_path / "s.tar", FILES), hash=True)
    columns = {**index.columns, "content": np.zeros(4, np.uint32)}
    content = sidecar.to_bytes(ShardIndex(index.meta, columns))
    with pytest.raises(IndexFileError, match="'content' has 4 rows, expected 5"):
        sidecar.from_bytes(content, "here")
    assert checked(index.meta, index.columns, "here").has_content_sums
