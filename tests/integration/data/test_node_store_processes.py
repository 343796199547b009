"""One cache and many real processes, which are killed at any moment."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from data.cache import cache_maintenance
from data.cache.files.cache_entry import ShardRef
from data.cache.files.cache_folder import CacheFolder
from data.cache.node_store import NodeStore
from data.cache.space.space_reservation import sweep
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.integration.data.shard_reader import body_of
from tests.services.processes import bound
from tests.services.range_server import RangeServer, range_server

SIZE = 2_000_000
NAMES = [f"shard-{i:06d}.tar" for i in range(6)]
READERS = 8


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        for name in NAMES:
            server.put(f"/{name}", body_of(name, SIZE))
        yield server


def start(cache: Path, server: RangeServer, seed: int, budget: int) -> "subprocess.Popen[str]":
    arguments = [str(cache), str(budget), server.url, ",".join(NAMES), str(SIZE), str(seed)]
    command = [sys.executable, "-m", "tests.integration.data.shard_reader", *arguments]
    return subprocess.Popen(
        bound(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: "subprocess.Popen[str]") -> dict[str, int]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    result: dict[str, int] = json.loads(out)
    return result


def check(cache: Path) -> None:
    """The cache holds all shards, right ones only, and nothing else is left."""
    found = dict(cache_maintenance.verified(cache))
    assert sorted(entry.name for entry in found) == NAMES
    assert all(found.values())
    kinds = Counter(path.suffix for path in cache.iterdir() if path.is_file())
    assert kinds == {".shard": len(NAMES), ".json": len(NAMES)}


def test_many_readers_make_one_download_of_each_shard(server: RangeServer, tmp_path: Path) -> None:
    server.bytes_per_s = 10e6
    readers = [start(tmp_path / "c", server, seed, 10**9) for seed in range(READERS)]
    results = [finish(reader) for reader in readers]
    assert Counter(server.streams) == {(f"/{name}", 0): 1 for name in NAMES}
    past = sum(result["bypasses"] for result in results)
    assert past or sum(result["fetched"] for result in results) == SIZE * len(NAMES)
    check(tmp_path / "c")


def test_killed_readers_leave_a_right_cache(server: RangeServer, tmp_path: Path) -> None:
    """Whoever is killed, others go on where its download was, from its last byte."""
    server.bytes_per_s = 0.3e6
    (tmp_path / "c").mkdir(mode=0o700)
    cache, rng, seeds = tmp_path / "c", random.Random(7), iter(range(1000))
    readers = [start(cache, server, next(seeds), 10**9) for _ in range(READERS)]
    killed_over_downloads = 0
    while killed_over_downloads < 6:
        time.sleep(rng.uniform(0.1, 0.4))
        holders = _downloading(cache)
        downloading = [i for i, one in enumerate(readers) if one.pid in holders]
        one = rng.choice([*downloading, rng.randrange(READERS)])
        killed_over_downloads += readers[one].pid in holders
        readers[one].send_signal(signal.SIGKILL)
        readers[one].communicate()
        readers[one] = start(cache, server, next(seeds), 10**9)
    server.bytes_per_s = None
    for reader in readers:
        finish(reader)
    for name in NAMES:
        starts = [at for path, at in server.streams if path == f"/{name}"]
        assert starts == sorted(starts)
    assert len(server.streams) > len(NAMES)  # or nobody was killed over a download
    for half_written in cache.glob("*.tmp"):  # whoever was killed was about to rename it
        os.utime(half_written, (0, 0))  # an hour later
    sweep(CacheFolder(cache))
    check(cache)


def test_a_cache_too_small_for_all_stays_within_its_budget(
    server: RangeServer, tmp_path: Path
) -> None:
    budget = 3 * SIZE
    readers = [start(tmp_path / "c", server, seed, budget) for seed in range(3)]
    most = 0
    while any(reader.poll() is None for reader in readers):
        if (tmp_path / "c").exists():
            most = max(most, sum(_size(path) for path in (tmp_path / "c").iterdir()))
        time.sleep(0.005)
    for reader in readers:
        finish(reader)
    assert SIZE <= most <= budget + 100_000
    assert all(right for _, right in cache_maintenance.verified(tmp_path / "c"))


def _downloading(cache: Path) -> set[int]:
    """The processes that hold a lock of a shard."""
    inodes = {str(file.inode()) for file in os.scandir(cache) if ".tar.lock" in file.name}
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return {int(words[4]) for words in lines if words[5].rpartition(":")[2] in inodes}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.suffix in (".shard", ".part") else 0
    except FileNotFoundError:
        return 0


@pytest.mark.timeout(240)  # what a lock that is kept would take
def test_a_fork_keeps_no_lock_of_its_parent(server: RangeServer, tmp_path: Path) -> None:
    """A child that was forked during a download must not look like the one who downloads."""
    server.bytes_per_s = 1e6
    name = NAMES[0]
    ref = ShardRef(f"{server.url}/{name}", SIZE, blake3(body_of(name, SIZE)).hexdigest())
    arguments = [str(tmp_path / "c"), str(10**9), server.url, name, str(SIZE), "1"]
    program = (
        "import os, sys, time, threading\n"
        "from tests.integration.data import shard_reader\n"
        "def fork():\n"
        "    while not any(n.endswith('.part') for n in os.listdir(sys.argv[1])): time.sleep(.01)\n"
        "    if os.fork() == 0: time.sleep(300); os._exit(0)\n"
        "    print('forked', flush=True)\n"
        "os.makedirs(sys.argv[1], 0o700)\n"
        "threading.Thread(target=fork).start()\n"
        "shard_reader.main()\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program, *arguments]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "forked\n"
        parent.kill()
        parent.wait()
        server.bytes_per_s = None
        sources = Sources(retry=SourceRetryPolicy(budget_s=5.0))
        with NodeStore(tmp_path / "c", 10**9, sources=sources, free_reserve=0) as store:
            assert store.prefetch(ref)
            assert store.metrics.downloads == 1
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        assert parent.stdout is not None
        parent.stdout.close()


def test_the_order_of_eviction_is_that_of_all_live_jobs(
    server: RangeServer, tmp_path: Path
) -> None:
    refs = [ShardRef(f"{server.url}/{name}") for name in NAMES]
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from data.cache.node_store import NodeStore\n"
        f"store = NodeStore(Path(sys.argv[1]), {3 * SIZE}, free_reserve=0)\n"
        "store.publish_plan([(sys.argv[2], 5.0)])\n"
        "print('planned', flush=True)\n"
        "time.sleep(600)\n"
    )
    with NodeStore(tmp_path / "c", 3 * SIZE, free_reserve=0) as store:
        other = subprocess.Popen(
            bound([sys.executable, "-c", program, str(tmp_path / "c"), refs[0].url]),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "planned\n"
        for ref in refs[:3]:
            assert store.prefetch(ref)
        store.publish_plan([(refs[1], 100.0), (refs[2], 50.0), (refs[3], 20.0), (refs[4], 10.0)])
        assert store.prefetch(refs[3])  # for 1, which is needed last
        assert _names(tmp_path) == [NAMES[0], NAMES[2], NAMES[3]]
        assert store.prefetch(refs[4])
        assert _names(tmp_path) == [NAMES[0], NAMES[3], NAMES[4]]
        assert not store.prefetch(refs[5])  # in no plan: nothing goes for it
        other.kill()
        other.communicate()
        assert store.prefetch(refs[5], when_s=15.0)  # the other job is gone, and its plan
        assert _names(tmp_path) == [NAMES[3], NAMES[4], NAMES[5]]
        with store.open(refs[5]) as held:
            held.pread(0, 1)
            store.publish_plan([])
            for ref in refs[:3]:
                assert store.prefetch(ref)
            assert NAMES[5] in _names(tmp_path)  # nothing that is open is removed
        assert store.metrics.evictions == 6


def _names(folder: Path) -> list[str]:
    return sorted(one.entry.name for one in cache_maintenance.listed(folder / "c"))
