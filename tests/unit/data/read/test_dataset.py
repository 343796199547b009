"""Datasets: what opens, how samples are found and read, what a fingerprint covers."""

import logging
import os
import resource
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data import DataError, FetchError, Loader, ShardError, build_index, open_dataset, pack_folder
from data.index.manifest import Manifest
from data.index.shard.shard_index import ShardIndex
from data.read import loader as loader_module
from data.read.dataset import Dataset
from data.read.shards.open_descriptors import OPEN_SHARDS, DescriptorBudget
from tests.descriptors import links, opened
from tests.unit.data.tars import write_tar

ROOT = Path(__file__).parents[4]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """25 samples (`00.txt` holds b"0", …) in shards of 4."""
    source = tmp_path / "src"
    source.mkdir()
    for i in range(25):
        (source / f"{i:02d}.txt").write_bytes(str(i).encode())
    pack_folder(source, tmp_path / "out", samples_per_shard=4)
    return tmp_path / "out"


def keys(dataset: Dataset) -> list[str]:
    return [dataset.read(i)["__key__"] for i in range(len(dataset))]


def test_every_way_to_name_the_shards(shards: Path) -> None:
    everything = [f"{i:02d}" for i in range(25)]
    assert keys(open_dataset(shards)) == everything
    assert keys(open_dataset(str(shards))) == everything
    assert keys(open_dataset(f"{shards}/shard-*.tar")) == everything
    assert keys(open_dataset(f"{shards}/shard-{{000000..000006}}.tar")) == everything
    assert keys(open_dataset(sorted(shards.glob("*.tar")))) == everything
    one, two = shards / "shard-000000.tar", shards / "shard-000002.tar"
    assert keys(open_dataset(one)) == everything[:4]
    assert keys(open_dataset([two, one])) == everything[8:12] + everything[:4]


def test_samples_are_read_as_of_a_list(shards: Path) -> None:
    dataset = open_dataset(shards)
    assert [dataset[i]["__key__"] for i in (3, np.int64(24), -1, -25)] == ["03", "24", "24", "00"]
    assert [sample["__key__"] for sample in dataset] == [f"{i:02d}" for i in range(25)]
    for index in (25, -26):
        with pytest.raises(IndexError, match=f"sample {index} is not in 0..24"):
            dataset[index]
    with pytest.raises(TypeError, match="got '03'; `index_of` finds the number of a key"):
        dataset.read("03")  # type: ignore[arg-type]
    for wrong in (1.0, slice(2)):
        with pytest.raises(TypeError, match="a sample is read by its number, one at a time, got"):
            dataset[wrong]  # type: ignore[index]


def test_a_manifest_may_have_any_name(shards: Path, tmp_path: Path) -> None:
    build_index(shards, tmp_path / "train")
    assert keys(open_dataset(tmp_path / "train")) == keys(open_dataset(shards))


def test_a_cache_of_no_bytes_is_told(
    shards: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_dataset(shards, cache=tmp_path / "cache", cache_bytes=10**6)
    open_dataset(shards, cache_bytes=10**6)
    assert not caplog.messages
    open_dataset(shards, cache=tmp_path / "cache")
    assert "nothing is cached in" in caplog.text


def test_a_key_is_text(shards: Path) -> None:
    with pytest.raises(DataError, match="a key is text, got 5"):
        open_dataset(shards).index_of(5)  # type: ignore[arg-type]


def test_relative_paths_work(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards)
    assert len(open_dataset("shard-{000000..000001}.tar")) == 8
    assert len(open_dataset(".")) == 25


@pytest.mark.parametrize(
    "name", ["none", "none/*.tar", "shard-{000005..000009}.tar", "{3..1}.tar", "s3://b/x.tar"]
)
def test_missing_shards_are_named(shards: Path, name: str) -> None:
    asked = name if "://" in name else f"{shards}/{name}"
    with pytest.raises(DataError, match=r"none|shard-000007|\{3\.\.1\}|s3://b/x\.tar"):
        open_dataset(asked)


def test_no_shards_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"looked for .*\*\.tar"):
        open_dataset(tmp_path)
    with pytest.raises(DataError, match="no shards given"):
        open_dataset([])


def test_a_list_may_be_any_iterable_and_other_things_are_refused(shards: Path) -> None:
    assert len(open_dataset(path for path in sorted(shards.glob("*.tar")))) == 25  # type: ignore[arg-type]
    for wrong, kind in ((None, "NoneType"), (b"x", "bytes"), ({}, "dict"), ([shards, 3], "int")):
        with pytest.raises(DataError, match=f"as text or a Path, not as {kind}"):
            open_dataset(wrong)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="a set, whose order differs between ranks; sort them"):
        open_dataset(set(shards.glob("*.tar")))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.jsonl", "x.parquet"])
def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(DataError, match="it is not a regular file"):
            open_dataset(place, cache=tmp_path / "cache", cache_bytes=10**6)


def test_a_name_too_long_for_an_index_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tar(tmp_path / f"{'n' * 251}.tar", [("a.txt", b"1")])
    assert keys(open_dataset(tmp_path)) == ["a"]
    assert not caplog.records


def test_a_shard_given_twice_is_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="given twice"):
        open_dataset([shards, shards / "shard-000000.tar"])
    shutil.copytree(shards, tmp_path / "copy")
    assert len(open_dataset([shards, tmp_path / "copy"])) == 50


def test_empty_shards_are_passed_over(shards: Path, tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    dataset = open_dataset([tmp_path / "empty.tar", shards])
    found = [dataset.place(number) for number in (0, 3, 4, 7, 8, 24)]
    assert found == [(1, 0), (1, 3), (2, 0), (2, 3), (3, 0), (7, 0)]
    for wrong in (-1, 25):
        with pytest.raises(IndexError):
            dataset.read(wrong)


def test_links_to_shards_keep_their_own_name(shards: Path, tmp_path: Path) -> None:
    """As in a Hugging Face cache, where shards are links to blobs named by hash."""
    (tmp_path / "blob").write_bytes((shards / "shard-000000.tar").read_bytes())
    (tmp_path / "links").mkdir()
    (tmp_path / "links/shard-000000.tar").symlink_to(tmp_path / "blob")
    linked = open_dataset(tmp_path / "links")
    assert linked.fingerprint == open_dataset(shards / "shard-000000.tar").fingerprint
    with pytest.raises(DataError, match="given twice"):
        open_dataset([tmp_path / "links", tmp_path / "blob"])


def test_the_fingerprint_is_of_the_content_and_its_order(shards: Path, tmp_path: Path) -> None:
    first = open_dataset(shards).fingerprint
    shutil.copytree(shards, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    assert open_dataset(tmp_path / "elsewhere").fingerprint == first
    paths = sorted(shards.glob("*.tar"))
    assert open_dataset(paths[::-1]).fingerprint != first
    assert open_dataset(paths[:-1]).fingerprint != first
    paths[0].rename(shards / "renamed.tar")
    assert open_dataset([shards / "renamed.tar", *paths[1:]]).fingerprint == first


def test_many_threads_and_few_descriptors(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OPEN_SHARDS, "_limit", 2)  # seven shards: most reads have to open one
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (links().total() + 48, hard))
    try:
        dataset = open_dataset(shards)
        with ThreadPoolExecutor(8) as pool:
            read = list(pool.map(dataset.read, list(range(25)) * 80))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [sample["txt"] for sample in read] == [str(i).encode() for i in range(25)] * 80


def test_datasets_share_what_the_process_may_open(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a shard whose file was let go of is opened again, its index not."""
    monkeypatch.setattr(OPEN_SHARDS, "_limit", 3)
    indexed: list[int] = []
    open_shard = Manifest.open_shard

    def counted(manifest: Manifest, i: int, **options: Any) -> ShardIndex:
        indexed.append(i)
        return open_shard(manifest, i, **options)

    monkeypatch.setattr(Manifest, "open_shard", counted)
    first, second = open_dataset(shards), open_dataset(shards)
    manifests = opened(shards)
    for _ in range(3):
        assert keys(first) == keys(second) == [f"{i:02d}" for i in range(25)]
        assert opened(shards) - manifests <= 3
    assert sorted(indexed) == sorted([*range(7)] * 2)


def test_the_soft_limit_of_open_files_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = links().total() + 48
    resource.setrlimit(resource.RLIMIT_NOFILE, (low, hard))
    try:
        with caplog.at_level(logging.INFO):
            limit = DescriptorBudget().limit
        now, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert low < now <= hard
    assert low < limit < now
    assert f"raised from {low} to {now}" in caplog.text


FEW_DESCRIPTORS_LEFT = """
import logging, os, resource, sys

from data import open_dataset
from data.read import dataset as dataset_module
from data.read.shards import shard_samples
from data.read.shards.open_descriptors import DescriptorBudget

logging.basicConfig(stream=sys.stdout, format="%(message)s")
few = DescriptorBudget(100)
dataset_module.OPEN_SHARDS = shard_samples.OPEN_SHARDS = few
dataset = open_dataset(sys.argv[1])
[dataset.read(i) for i in range(len(dataset))]  # imports what reads import
dataset.close()  # what was open does not count when room is made
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    for fd in taken[-6:]:
        os.close(fd)
print(*[dataset.read(i)["__key__"] for i in range(len(dataset))] * 2)
print(few.limit)
"""


def test_too_many_open_files_make_room(shards: Path) -> None:
    """Somebody else of the process has taken what was there when the budget was made.

    In a process of its own: what other tests have left to be closed would make room here.
    """
    ran = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS_LEFT, str(shards)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    *said, read, limit = ran.stdout.splitlines()
    assert read.split() == [f"{i:02d}" for i in range(25)] * 2
    assert int(limit) < 7
    assert "too many open files in this process: of" in "\n".join(said)


def test_a_loader_that_needs_more_shards_open_than_there_can_be_says_so(
    shards: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    few = DescriptorBudget(6)
    monkeypatch.setattr(loader_module, "OPEN_SHARDS", few)
    for window, said in ((1, 0), (2, 1), (2, 1)):
        next(iter(Loader(open_dataset(shards), global_batch=1, streams=5, window=window)))
        assert caplog.text.count("shards are read at a time") == said
    assert "7 shards are read at a time, but only 6 can be open" in caplog.text
    assert "`ulimit -n` is" in caplog.text


def test_close_lets_go_of_every_descriptor(shards: Path) -> None:
    dataset = open_dataset(shards)
    keys(dataset)
    assert opened(shards) == 8, "the shards and the manifest"
    dataset.close()
    assert opened(shards) == 1
    assert dataset.read(0)["txt"] == b"0"


def test_a_shard_that_shrinks_while_open_is_named(shards: Path) -> None:
    dataset = open_dataset(shards / "shard-000000.tar")
    dataset.read(0)
    os.truncate(shards / "shard-000000.tar", 3 * 1024 + 512)
    with pytest.raises(ShardError, match=r"shard-000000\.tar, offset 3584: it ends here"):
        dataset.read(3)


def test_a_shard_gone_or_resized_is_named(shards: Path) -> None:
    dataset = open_dataset(shards)
    os.truncate(shards / "shard-000000.tar", 2048)
    (shards / "shard-000001.tar").unlink()
    with pytest.raises(FetchError, match=r"shard-000000\.tar: is 2048 bytes long"):
        dataset.read(0)
    with pytest.raises(FetchError, match=r"shard-000001\.tar: cannot be opened: No such file"):
        dataset.read(4)


def test_shards_that_were_added_and_not_indexed_are_told(
    shards: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_dataset(shards)
    assert not any(str(shards) in text for text in caplog.messages)
    shutil.copy(shards / "shard-000000.tar", shards / "shard-000099.tar")
    assert len(open_dataset(shards)) == 25
    assert "tars of this folder that it does not list are not read: shard-000099.tar" in caplog.text
