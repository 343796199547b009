"""Damaged shards: the error names shard and offset, at opening or on the batch that needs it."""

import io
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from data import (
    DataError,
    FetchError,
    FingerprintError,
    IndexingError,
    Loader,
    Order,
    SampleError,
    ShardError,
    open_dataset,
)
from data.index.shard.sidecar import beside


def write_tar(path: Path, files: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


FILES = [(f"{i}.txt", f"text {i}".encode() * 300) for i in range(6)]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for shard in range(3):
        files = [(f"{shard}/{name}", content) for name, content in FILES]
        write_tar(tmp_path / f"shard-{shard:06d}.tar", files)
    return tmp_path


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 100)


def replace_by_text(path: Path) -> None:
    path.write_bytes(b"<html>404 Not Found</html>" * 100)


def swap_members(path: Path) -> None:
    """Two members of one key, with another sample between them."""
    write_tar(path, [("0.txt", b"a"), ("1.txt", b"b"), ("0.json", b"c")])


def break_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(2560)
        file.write(b"\xee" * 64)


@pytest.mark.parametrize("damage", [truncate, replace_by_text, swap_members, break_header])
def test_a_damaged_shard_is_named_when_it_is_opened(
    shards: Path, damage: Callable[[Path], None]
) -> None:
    open_dataset(shards)  # leaves sidecars, which must not hide the damage
    shard = shards / "shard-000001.tar"
    damage(shard)
    with pytest.raises(IndexingError, match=rf"{re.escape(str(shard))}, offset \d+: ") as caught:
        open_dataset(shards)
    (error,) = caught.value.errors
    assert isinstance(error, ShardError)
    assert (error.path, error.offset >= 0) == (shard, True)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "none"))):
        open_dataset(tmp_path / "none")


def test_damage_after_opening_comes_on_its_batch(shards: Path) -> None:
    dataset = open_dataset(shards)
    loader = Loader(dataset, global_batch=1)
    truncate(shards / "shard-000001.tar")
    iterator = iter(loader)
    where, _ = Order(dataset.manifest.samples).locate(np.arange(len(dataset)))
    first_bad = int(np.flatnonzero(where == 1)[0])
    for _ in range(first_bad):
        batch = next(iterator)
        assert batch.data[0]["txt"] == FILES[int(batch.keys[0][2:])][1]
    with pytest.raises(SampleError, match=r"shard-000001\.tar: is \d+ bytes long") as one:
        next(iterator)
    assert isinstance(one.value.__cause__, FetchError)
    assert one.value.position == first_bad == loader.state_dict()["position"]


def test_a_shard_swapped_behind_an_equal_size_and_time_is_not_misread(shards: Path) -> None:
    """The sidecar still fits by size and time; the headers tell."""
    shard = shards / "shard-000001.tar"
    open_dataset(shards)
    status = shard.stat()
    write_tar(shard, [(f"1/{name}", content) for name, content in FILES[::-1]])
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert shard.stat().st_size == status.st_size
    with pytest.raises(ShardError, match=r"shard-000001\.tar, offset 0: the tar header") as caught:
        open_dataset(shards).read(6)
    assert "index the dataset again" in str(caught.value)
    Path(beside(str(shard))).unlink()
    assert open_dataset(shards).read(6)["__key__"] == "1/5"


def test_swapped_members_make_another_dataset(shards: Path) -> None:
    state = Loader(open_dataset(shards), global_batch=2).state_dict()
    write_tar(shards / "shard-000001.tar", [(f"1/{n}", c) for n, c in FILES[::-1]])
    with pytest.raises(FingerprintError, match="fingerprint is"):
        Loader(open_dataset(shards), global_batch=2).load_state_dict(state)
