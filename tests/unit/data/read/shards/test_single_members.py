"""Samples that are read from entries: the same as by their shard, and never other bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.cache.files.file_handle import FileHandle
from data.index.index_build import build_index
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import scan_shard
from data.read.dataset import open_dataset
from data.read.loader import Loader
from data.read.shards import single_members
from data.read.shards.piece_reads import SampleReader
from data.read.shards.shard_samples import ShardSamples
from data.read.shards.single_members import (
    SingleMemberFile,
    entry_bytes,
    read_single_members,
    single_member_file,
)
from tests.effort import times
from tests.unit.data.tars import Files, write_tar


def opened(path: Path) -> tuple[ShardIndex, SingleMemberFile | None]:
    index = scan_shard(str(path), hash=True)
    file = FileHandle(os.open(path, os.O_RDONLY))
    return index, single_member_file(index, str(path), file)


def simple(path: Path, sizes: list[int]) -> SingleMemberFile:
    files = [(f"k{number:0{number % 3 + 1}}.bin", os.urandom(n)) for number, n in enumerate(sizes)]
    index, found = opened(write_tar(path, files))
    assert found is not None
    assert entry_bytes(index) == len(found.entries) + len(found.keys)
    return found


@settings(max_examples=times(10), deadline=None)
@given(sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=9))
def test_samples_are_those_of_their_shards(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("t")
    files = [simple(folder / f"{number}.tar", sizes) for number in range(2)]
    dataset = open_dataset(folder)
    numbers = list(range(len(sizes)))
    expected = [dataset.opened(shard).read(i)[0] for i in numbers for shard in (1, 0)]
    each = [files[shard] for _ in numbers for shard in (1, 0)]
    samples, total, bad = read_single_members(each, [i for i in numbers for _ in range(2)])
    assert (samples, total, bad) == (expected, 2 * sum(sizes), [])


def test_bytes_that_are_not_those_that_were_indexed_are_never_returned(tmp_path: Path) -> None:
    path = tmp_path / "s.tar"
    file = simple(path, [100, 1000, 200, 300])
    content = bytearray(path.read_bytes())
    content[4 * 512 + 7] ^= 1  # of the second sample
    path.write_bytes(content[: 7 * 512 + 10])  # ends in the last one
    samples, total, bad = read_single_members([file] * 4, range(4))
    assert (bad, total) == ([1, 3], 300)
    assert [sample is None for sample in samples] == [False, True, False, True]
    closed = file._replace(fd=2**20)  # a descriptor that there is not
    assert read_single_members([closed], [0]) == ([None], 0, [0])


@pytest.mark.parametrize(
    "files",
    [
        [("a.bin", b"1"), ("a.txt", b"2")],
        [("a.bin", b"1"), ("b.txt", b"2")],
        [("ä.bin", b"1")],
        [("a.bin", b"1" * 40_000)],
        [("a" * 2**16 + ".bin", b"1")],
    ],
    ids=["two members", "two extensions", "a key of other letters", "large", "a long key"],
)
def test_other_shards_have_no_entries(tmp_path: Path, files: Files) -> None:
    assert opened(write_tar(tmp_path / "s.tar", files))[1] is None


def test_files_are_forgotten_once_a_shard_closes_its_own(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [("a.bin", b"1"), ("b.bin", b"2")])
    write_tar(tmp_path / "1.tar", [("c.bin", b"3")])
    build_index(tmp_path, hash=True)
    loader = Loader(open_dataset(tmp_path), global_batch=3, threads=0, epochs=3)
    batches = iter(loader)
    before = [ref() for ref in single_members._all_open_files]
    next(batches)
    next(batches)  # by files that are known
    found = [ref() for ref in single_members._all_open_files]
    known = [one for one in found if one is not None and one not in before]
    assert [len(one.files) for one in known] == [2]
    other = open_dataset(tmp_path)
    other.read(0)
    other.close()
    assert [one.files for one in known] == [{}]
    assert sorted(sample["bin"] for sample in next(batches).data) == [b"1", b"2", b"3"]
    loader.close()


def test_a_shard_that_is_released_while_it_is_read_keeps_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would close it: its descriptor is no longer counted."""
    write_tar(tmp_path / "0.tar", [("a.bin", b"1")])
    build_index(tmp_path, hash=True)
    shard = open_dataset(tmp_path).opened(0)
    make = ShardSamples._direct_reader

    def released(self: ShardSamples, file: FileHandle) -> SampleReader:
        self.release()  # as another thread may
        return make(self, file)

    monkeypatch.setattr(ShardSamples, "_direct_reader", released)
    assert shard.read(0)[0]["bin"] == b"1"
    assert (shard.is_open, shard.single_member_file, shard._direct) == (False, None, None)


def test_a_shard_without_checksums_of_contents_has_no_records(tmp_path: Path) -> None:
    index = scan_shard(str(write_tar(tmp_path / "s.tar", [("a.bin", b"1")])), hash=False)
    assert not index.has_content_sums
    assert entry_bytes(index) == 0
