"""`hpckit data warm` and `cache`: real downloads into a real cache."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data import Loader, NodeStore, open_dataset
from data.cache.files.cache_entry import ShardRef
from tests.integration.cli.data_commands import EACH, SHARDS, document, hpckit, refused, serve
from tests.services.range_server import RangeServer

ROOT = Path(__file__).parents[3]


@pytest.fixture
def shards(server: RangeServer, local: Path) -> str:
    return serve(server, local)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def each(local: Path) -> int:
    """Bytes of a shard: all are of one size."""
    sizes = {path.stat().st_size for path in local.glob("*.tar")}
    assert len(sizes) == 1
    return sizes.pop()


def names(cache: Path) -> set[str]:
    """Of the shards that are listed."""
    listed = document("cache", "ls", "--cache", cache)["shards"]
    return {one["url"].rpartition("/")[2] for one in listed}


def test_after_warming_nothing_is_fetched(
    server: RangeServer, shards: str, cache: Path, each: int
) -> None:
    told = document("warm", shards, "--cache", cache, "--cache-bytes", "1GB", "--downloads", 3)
    assert (told["shards"], told["cached"], told["left_out"]) == (SHARDS, SHARDS, 0)
    assert told["bytes"] == told["bytes_fetched"] == SHARDS * each
    whole = [path for path, first in server.seen if path.endswith(".tar") and first == 0]
    assert len(set(whole)) == len(whole) == SHARDS
    dataset = open_dataset(shards, cache=cache, cache_bytes=10**9)
    loader = Loader(dataset, global_batch=30, epochs=1)
    assert sum(len(batch.keys) for batch in loader) == SHARDS * EACH
    loader.close()
    assert dataset.store.metrics.bytes_fetched == 0
    again = document("warm", shards, "--cache", cache, "--cache-bytes", "1GB")
    assert (again["cached"], again["bytes_fetched"]) == (SHARDS, 0)
    assert (
        f"6 of {SHARDS} shards in the cache"
        in hpckit("warm", shards, "--cache", cache, "--cache-bytes", "1GB").stdout
    )


def test_what_does_not_fit_is_what_is_used_last(
    server: RangeServer, shards: str, cache: Path, each: int
) -> None:
    room = ("--cache", cache, "--cache-bytes", 3 * each + 100)
    order = ("--streams", 1, "--window", 1, "--seed", 4)
    told = document("warm", shards, *room, *order, exit_code=4)
    assert (told["cached"], told["left_out"], told["failed"]) == (3, 3, [])
    loader = Loader(open_dataset(shards), global_batch=3 * EACH, streams=1, window=1, seed=4)
    first = next(iter(loader))
    loader.close()
    warmed = names(cache)
    assert warmed == {f"s-{number // EACH:02d}.tar" for number in first.indices}
    told = document("warm", shards, *room, *order, "--position", 3 * EACH, exit_code=4)
    assert told["cached"] == 3
    assert names(cache).isdisjoint(warmed)


def test_warming_for_some_ranks(server: RangeServer, shards: str, cache: Path) -> None:
    order = ("--streams", SHARDS, "--window", 1, "--global-batch", 12)
    common = ("warm", shards, "--cache", cache, "--cache-bytes", "1GB", *order)
    told = document(*common, "--streams-of", "1/3")
    assert told["cached"] == told["shards"] < SHARDS
    dataset = open_dataset(shards, cache=cache, cache_bytes=10**9)
    loader = Loader(
        dataset,
        global_batch=12,
        rank=1,
        world_size=3,
        streams=SHARDS,
        window=1,
    )
    batches = iter(loader)
    for _ in range(SHARDS * EACH // 12):
        next(batches)
    loader.close()
    assert dataset.store.metrics.bytes_fetched == 0
    assert document(*common, "--streams-of", "0-2/3")["cached"] == SHARDS
    for wrong in ("3/3", "2-1/3", "x", "0-3/3", "1"):
        refused(*common, "--streams-of", wrong, says="--streams-of")
    refused(
        *("warm", shards, "--cache", cache, "--cache-bytes", "1GB", "--streams-of", "0/3"),
        says="requires --global-batch",
    )


def test_a_shard_that_cannot_be_had(server: RangeServer, shards: str, cache: Path) -> None:
    del server.objects["/set/s-03.tar"]
    told = document("warm", shards, "--cache", cache, "--cache-bytes", "1GB", exit_code=3)
    assert told["cached"] == SHARDS - 1
    (failed,) = told["failed"]
    assert "s-03.tar" in failed
    told = hpckit("warm", shards, "--cache", cache, "--cache-bytes", "1GB")
    assert told.exit_code == 3
    assert "failed: shard" in told.stderr


def test_a_killed_warm_goes_on(server: RangeServer, shards: str, cache: Path, each: int) -> None:
    server.bytes_per_s = each / 0.5
    arguments = ["data", "warm", shards, "--cache", str(cache), "--cache-bytes", "1GB"]
    program = f"from hpckit.cli.main import app; app({arguments!r} + ['--downloads', '1'])"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", program], env=env) as process:
        while sum(path.suffix == ".shard" for path in _files(cache)) < 2:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    server.bytes_per_s = None
    told = document(*arguments[1:])
    assert told["cached"] == SHARDS
    assert told["bytes_fetched"] <= (SHARDS - 2) * each


def _files(cache: Path) -> list[Path]:
    return list(cache.iterdir()) if cache.is_dir() else []


def test_files_of_this_machine_need_no_cache(local: Path, cache: Path) -> None:
    told = document("warm", local, "--cache", cache, "--cache-bytes", "1MB")
    assert (told["in_place"], told["cached"], told["bytes_fetched"]) == (SHARDS, 0, 0)


def test_refusals_of_warm(tmp_path: Path, shards: str, cache: Path) -> None:
    refused("warm", shards, "--cache", cache, "--cache-bytes", "much", says="is not a size")
    refused("warm", tmp_path / "x", "--cache", cache, "--cache-bytes", "1GB", says="no shards")
    (tmp_path / "file").touch()
    held = ("--cache", tmp_path / "file", "--cache-bytes", "1GB")
    told = hpckit("warm", shards, *held)
    assert told.exit_code == 3
    assert "the cache's disk gave EEXIST" in told.stderr


def test_the_cache_is_listed_verified_and_pruned(shards: str, cache: Path, each: int) -> None:
    hpckit("warm", shards, "--cache", cache, "--cache-bytes", "1GB")
    found = document("cache", "ls", "--cache", cache)
    assert (len(found["shards"]), found["bytes"]) == (SHARDS, SHARDS * each)
    assert all(one["whole"] and one["next_use_s"] is None for one in found["shards"])
    with NodeStore(cache, 10**9) as store:
        store.publish_plan([(ShardRef(f"{shards}s-02.tar"), 3600.0)])
        planned = [
            one for one in document("cache", "ls", "--cache", cache)["shards"] if one["next_use_s"]
        ]
        assert [one["url"] for one in planned] == [f"{shards}s-02.tar"]
        assert "in 60 min" in hpckit("cache", "ls", "--cache", cache).stdout
        dry = document("cache", "prune", "--cache", cache, "--to", each + 10, "--dry-run")
        assert dry == {"dry_run": True, "gained": (SHARDS - 1) * each, "bytes": each}
        assert len(document("cache", "ls", "--cache", cache)["shards"]) == SHARDS
        done = document("cache", "prune", "--cache", cache, "--to", each + 10)
        assert done == {**dry, "dry_run": False}
        (left,) = document("cache", "ls", "--cache", cache)["shards"]
        assert left["url"].endswith("s-02.tar")
    assert "1 shard of" in hpckit("cache", "verify", "--cache", cache).stdout
    (path,) = cache.rglob("*.shard")
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    path.chmod(0o400)
    told = document("cache", "verify", "--cache", cache, exit_code=1)
    assert told["damaged"] == [f"{shards}s-02.tar"]
    assert document("cache", "verify", "--cache", cache)["checked"] == 0
    gained = hpckit("cache", "prune", "--cache", cache, "--to", 0)
    assert "0 B removed, 0 B stay" in gained.stdout


def test_refusals_of_cache(tmp_path: Path) -> None:
    for verb in (("ls",), ("verify",), ("prune", "--to", "1GB")):
        refused("cache", *verb, "--cache", tmp_path / "none", says="no cache at")
    tmp_path.joinpath("c").mkdir()
    refused("cache", "prune", "--cache", tmp_path / "c", "--to", "-5", says="is not a size")
