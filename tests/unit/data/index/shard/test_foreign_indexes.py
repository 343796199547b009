"""Indexes of DALI and Energon beside a shard: those that fit are silent, others are named."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from data.index.shard.foreign_indexes import compare
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import scan_shard
from tests.unit.data.tars import Files, write_tar

FILES: Files = [("a 1.txt", b"12"), ("a 1.json", b"{}"), ("b.txt", b"x" * 600)]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "s-00.tar", FILES)


def dali_lines(index: ShardIndex) -> list[str]:
    """What wds2idx v1.2 writes."""
    return [
        " ".join(
            f"{m.extension} {m.offset} {m.size} {index.key(i)}.{m.extension}"
            for m in index.members(i)
        )
        for i in range(len(index))
    ]


def test_indexes_that_fit_are_silent(shard: Path, caplog: pytest.LogCaptureFixture) -> None:
    index = scan_shard(shard)
    lines = dali_lines(index)
    (shard.parent / "s-00.idx").write_text("\n".join([f"v1.2 {len(lines)}", *lines, ""]))
    offsets = [index.span(0)[0], index.span(1)[0], 3 * 512 + 3 * 512 + 512]
    (shard.parent / "s-00.tar.idx").write_bytes(struct.pack("<3Q", *offsets))
    assert compare(shard, scan_shard(shard)) == []
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("s-00.tar.idx", b"", "not a list of offsets"),
        ("s-00.tar.idx", b"1234567", "not a list of offsets"),
        ("s-00.tar.idx", struct.pack("<2Q", 0, 2048), "lists 1 samples, but there are 2"),
        ("s-00.tar.idx", struct.pack("<3Q", 0, 1024, 4096), "sample 1 moved"),
        ("s-00.idx", b"", "not an index of version"),
        ("s-00.idx", b"v1.2 1\ntxt 512 2 a 1.txt\n", "lists 1 samples, but there are 2"),
        ("s-00.idx", b"v1.1 2\ntxt 512 2 json 1536 2\ntxt 2048 600\n", "sample 1 moved"),
        ("s-00.idx", b"v1.2 2\ntxt 512 2 a 1.txt\ntxt 2560 600 b.txt\n", "sample 0 moved"),
    ],
)
def test_indexes_that_do_not_fit_are_named(
    shard: Path, name: str, content: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    (shard.parent / name).write_bytes(content)
    index = scan_shard(shard)
    assert len(index) == 2
    assert name in caplog.text
    assert problem in caplog.text


def test_one_that_cannot_be_read_is_named(shard: Path) -> None:
    (shard.parent / "s-00.idx").mkdir()
    (said,) = compare(shard, scan_shard(shard))
    assert "cannot be read" in said
