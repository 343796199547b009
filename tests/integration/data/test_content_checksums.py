"""A bit that changed within a sample: found by a read that compares contents, and mended."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from data import DataError, Dataset, Loader, SampleError, ShardError, ShardWriter, open_dataset
from data.index.index_build import build_index
from data.index.shard import sidecar
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import scan_shard
from data.read.shards import checksum_samples, piece_reads, single_members
from data.read.shards.piece_reads import Piece, read_pieces
from data.wds.dataset import StreamingDataset
from tests.integration.run.runs import eventually
from tests.services.range_server import RangeServer

Sample = dict[str, bytes]
SMALL: list[Sample] = [{"txt": f"text {number}".encode() * 40} for number in range(12)]
TWO: list[Sample] = [{**one, "json": b"{}", "none": b""} for one in SMALL]
LARGE: list[Sample] = [{"bin": bytes([number]) * 50_000} for number in range(12)]
MANY: list[Sample] = [
    {**one, "txt": bytes([65 + number]), "none": b""} for number, one in enumerate(LARGE)
]
OF_ANY_SIZE = pytest.mark.parametrize(
    "samples", [SMALL, TWO, LARGE, MANY], ids=["one", "two", "large", "many"]
)


def write(folder: Path, samples: list[Sample]) -> Path:
    """Two shards, of six samples each."""
    with ShardWriter(folder / "shard-%06d.tar", max_samples=6) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"{number:02}", **sample})
    return folder


def flip(path: Path, content: bytes) -> None:
    """A bit in the middle of where this is."""
    whole = path.read_bytes()
    mode = path.stat().st_mode
    path.chmod(0o600)
    with path.open("r+b") as file:
        at = whole.index(content) + len(content) // 2
        file.seek(at)
        file.write(bytes([whole[at] ^ 4]))
    path.chmod(mode)


def with_content(cache: Path, content: bytes) -> Path:
    """The shard with this; there may be readers of it before it is whole."""

    def look() -> Path | None:
        return next((path for path in cache.glob("*.shard") if content in path.read_bytes()), None)

    return eventually(look)


def read_apart(dataset: Dataset, number: int) -> Sample:
    """As a loader does: first what is to be read is asked for, then the sample is made of it."""
    reader = dataset.opened(number // 6).reader
    pieces: list[Piece] = []
    if reader.ask is not None:
        reader.ask(number % 6, pieces)
    return reader.make(number % 6, read_pieces(pieces))[0]


def contents(dataset: Dataset) -> list[Sample]:
    """Of all samples in their order, read twice: the second time by the shortest way."""
    found = [[dataset.read(number) for number in range(len(dataset))]]
    found.append([read_apart(dataset, number) for number in range(len(dataset))])
    assert found[0] == found[1]
    return [given(sample) for sample in found[0]]


def given(sample: Sample) -> Sample:
    """Its members."""
    return {name: content for name, content in sample.items() if not name.startswith("__")}


@OF_ANY_SIZE
def test_in_a_file_that_is_read_where_it_lies(tmp_path: Path, samples: list[Sample]) -> None:
    shards = write(tmp_path / "shards", samples)
    checked = open_dataset(shards)
    assert contents(checked) == samples
    bad = next(iter(samples[8].values()))
    flip(shards / "shard-000001.tar", bad)
    assert contents(open_dataset(shards, check="headers")) != samples, "headers do not tell"
    for dataset in (checked, open_dataset(shards, check="content")):
        for read in (partial(read_apart, checked), dataset.read):
            with pytest.raises(
                ShardError, match="bytes of the member at this offset are not"
            ) as caught:
                read(8)
            assert caught.value.offset == scan_shard(caught.value.path).members(2)[0].offset
        assert dataset.read(9)["__key__"] == "09"


@OF_ANY_SIZE
@pytest.mark.parametrize("is_open", [True, False])
def test_in_the_cache_it_is_fetched_again(
    tmp_path: Path, samples: list[Sample], is_open: bool
) -> None:
    shards, cache = write(tmp_path / "shards", samples), tmp_path / "cache"

    def opened() -> Dataset:
        return open_dataset(shards, cache=cache, cache_bytes=1 << 24, cache_local=True)

    dataset = opened()
    assert contents(dataset) == samples
    bad = next(iter(samples[3].values()))
    flip(with_content(cache, bad), bad)
    assert contents(dataset if is_open else opened()) == samples
    assert len(list((cache / "quarantine").iterdir())) == 1


def test_it_is_fetched_again_whenever_that_happens_but_not_twice_in_an_hour(tmp_path: Path) -> None:
    """Otherwise it is taken for damaged where it comes from."""
    shards, cache = write(tmp_path / "shards", SMALL), tmp_path / "cache"
    dataset = open_dataset(shards, cache=cache, cache_bytes=1 << 24, cache_local=True)
    assert contents(dataset) == SMALL
    bad = SMALL[3]["txt"]
    for again in range(3):
        path = with_content(cache, bad)
        flip(path, bad)
        assert contents(dataset) == SMALL
        assert len(list((cache / "quarantine").iterdir())) == again + 1
        marker = path.with_suffix(".damaged")
        long_ago = marker.stat().st_mtime - 3700
        os.utime(marker, (long_ago, long_ago))
    flip(with_content(cache, bad), bad)
    assert contents(dataset) == SMALL
    flip(with_content(cache, bad), bad)
    with pytest.raises(ShardError, match="bytes of the member at this offset are not"):
        dataset.read(3)


def test_memory_that_was_wrong_once_harms_no_shard(tmp_path: Path) -> None:
    dataset = open_dataset(write(tmp_path / "shards", SMALL))
    opened = dataset.opened(0)
    right = opened._pread
    with mock.patch.object(opened, "_pread", side_effect=right) as read:
        read.side_effect = lambda at, size: bytes(size) if read.call_count == 1 else right(at, size)
        assert opened.read(3)[0]["txt"] == SMALL[3]["txt"]
        assert read.call_count == 2


@OF_ANY_SIZE
def test_policies_bear_it(tmp_path: Path, samples: list[Sample]) -> None:
    """Nor is another sample of the batch made of what was read for the bad one."""
    shards = write(tmp_path / "shards", samples)
    flip(shards / "shard-000001.tar", next(iter(samples[8].values())))
    dataset = open_dataset(shards)
    with pytest.raises(SampleError, match=r"shard-000001\.tar"):
        list(Loader(dataset, global_batch=4, epochs=1))
    for workers in (0, 2):
        loader = Loader(dataset, global_batch=4, epochs=3, errors="skip", workers=workers)
        found = [sample for batch in loader for sample in batch.data]
        for sample in found:
            assert given(sample) == samples[int(sample["__key__"])]
        keys = sorted(sample["__key__"] for sample in found[:11])
        assert keys == [f"{number:02}" for number in range(12) if number != 8]
        assert len(found) == 3 * 11
        loader.close()
    pipeline = StreamingDataset(str(shards), errors="skip").to_tuple("__key__")
    assert sorted(key for (key,) in pipeline) == keys


@OF_ANY_SIZE
def test_what_cannot_be_read_at_once_is_read_by_itself(
    tmp_path: Path, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(write(tmp_path / "shards", samples))
    assert contents(dataset) == samples
    whole = os.pread
    count = 0

    def sometimes(fd: int, size: int, at: int) -> bytes:
        nonlocal count
        count += 1
        if count % 3 == 0:
            raise OSError(5, "a disk's error")
        return whole(fd, size - (count % 3 == 1), at)

    for module in (checksum_samples, piece_reads, single_members):
        monkeypatch.setattr(module, "pread", sometimes)
    found = list(Loader(dataset, global_batch=4, epochs=1, threads=0))
    assert count > 8
    each = [sample for batch in found for sample in batch.data]
    assert {sample["__key__"]: given(sample) for sample in each} == {
        f"{number:02}": sample for number, sample in enumerate(samples)
    }


def without_sums(shards: Path) -> None:
    """As if an hpckit that knew none had made their indexes."""
    for path in shards.glob("*.tar"):
        place = Path(sidecar.beside(str(path)))
        index = sidecar.load(place)
        assert index is not None
        del (columns := dict(index.columns))["content"]
        place.write_bytes(sidecar.to_bytes(ShardIndex(index.meta, columns)))


def test_an_index_without_checksums_is_refused_and_can_be_made_anew(tmp_path: Path) -> None:
    shards = write(tmp_path / "shards", SMALL)
    without_sums(shards)
    assert contents(open_dataset(shards)) == SMALL
    dataset = open_dataset(shards, check="content")
    with pytest.raises(DataError, match=r"no checksums .* with `hpckit data index --hash`"):
        dataset.read(0)
    build_index(shards)
    with pytest.raises(DataError, match="no checksums"):
        open_dataset(shards, check="content").read(0)
    build_index(shards, hash=True)
    assert contents(open_dataset(shards, check="content")) == SMALL


def test_what_was_changed_on_purpose_is_indexed_again(tmp_path: Path) -> None:
    """Its size and its headers are what they were."""
    shards = write(tmp_path / "shards", SMALL)
    path = shards / "shard-000001.tar"
    before = SMALL[8]["txt"]
    path.write_bytes(path.read_bytes().replace(before, before.upper()))
    with pytest.raises(
        ShardError,
        match=r"if the change was intended, .*`hpckit data index "
        r"--hash`",
    ):
        open_dataset(shards).read(8)
    build_index(shards, hash=True)
    assert open_dataset(shards).read(8)["txt"] == before.upper()


def test_no_other_way_of_checking_is_known(tmp_path: Path) -> None:
    shards = write(tmp_path / "shards", SMALL)
    with pytest.raises(DataError, match=r"must be one of .*'content', 'headers'.*got 'all'"):
        open_dataset(shards, check="all")  # type: ignore[arg-type]


def publish(server: RangeServer, shards: Path) -> None:
    for path in shards.iterdir():
        server.put(f"/{path.name}", path.read_bytes())


def test_at_a_url_the_index_beside_it_is_taken_that_has_them(
    tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = write(tmp_path / "shards", SMALL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))

    def opened() -> Dataset:
        cache = tmp_path / "cache"
        return open_dataset(f"{server.url}/", cache=cache, cache_bytes=1 << 24, check="content")

    without_sums(shards)
    publish(server, shards)
    with pytest.raises(DataError, match="no checksums"):
        opened().read(0)
    build_index(shards, hash=True)
    publish(server, shards)
    assert contents(opened()) == SMALL, "the one that is kept here has none"
