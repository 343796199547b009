"""Processes of a cache that are alive and do nothing (SIGSTOP): the others read on."""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from data.cache.downloads.download_job import DownloadStallWatch
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from tests.integration.data.shard_reader import body_of
from tests.services.processes import bound
from tests.services.range_server import range_server
from tests.stopped_processes import stop

SIZE = 2_000_000
HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@given(st.lists(st.tuples(st.integers(0, 3) | st.none(), st.floats(0.1, 20)), min_size=1))
def test_frozen_is_who_did_not_change_for_so_long(looks: list[tuple[int | None, float]]) -> None:
    watch, now_s, since_s = DownloadStallWatch(10.0), 0.0, 0.0
    before: int | None = -1
    for size, pause_s in looks:
        now_s += pause_s
        if size != before:
            before, since_s = size, now_s
        assert watch.is_frozen(size, now_s) == (now_s - since_s >= 10.0)


def within(seconds: float, told: Callable[[], bool]) -> None:
    until_s = time.monotonic() + seconds
    while not told():
        assert time.monotonic() < until_s
        time.sleep(0.02)


@contextmanager
def process(*command: str) -> "Iterator[subprocess.Popen[str]]":
    started = subprocess.Popen(
        bound([sys.executable, *command]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def test_a_frozen_download_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["shard-000000.tar", "shard-000001.tar"]
    cache = tmp_path / "cache"
    with range_server() as server:
        for name in names:
            server.put(f"/{name}", body_of(name, SIZE))
        server.bytes_per_s = 0.4e6
        reader = ("-m", "tests.integration.data.shard_reader", str(cache), str(10**9), server.url)
        with process(*reader, names[0], str(SIZE), "1") as frozen:
            within(120, lambda: any(part.stat().st_size for part in cache.glob("*.part")))
            stop(frozen.pid)
            server.bytes_per_s = None
            caplog.set_level(logging.WARNING)
            with NodeStore(cache, 10**9, free_reserve=0, frozen_s=0.5) as store:
                refs = {name: ShardRef(f"{server.url}/{name}", SIZE) for name in names}
                refs[names[0]] = ShardRef(
                    f"{server.url}/{names[0]}", SIZE, blake3(body_of(names[0], SIZE)).hexdigest()
                )
                for name, ref in refs.items():
                    with store.open(ref) as shard:
                        assert shard.pread(SIZE - 1000, 1000) == body_of(name, SIZE)[-1000:]
                        assert shard.pread(0, SIZE) == body_of(name, SIZE)
                assert store.metrics.frozen == 1
                assert store.metrics.bypasses >= 2, "on a slow machine one of the other shard, too"
                assert not store.prefetch(refs[names[0]])
                assert store.metrics.frozen == 2
                assert sum("has made no progress" in text for text in caplog.messages) == 1
                frozen.send_signal(signal.SIGCONT)
                out, _ = frozen.communicate(timeout=240)
                assert frozen.returncode == 0, out
                assert store.prefetch(refs[names[0]])  # what it went on with is there


def test_a_frozen_holder_of_the_folder_is_not_waited_for(tmp_path: Path) -> None:
    name = "shard-000000.tar"
    with range_server() as server:
        ref = ShardRef(server.put(f"/{name}", body_of(name, SIZE)), SIZE)
        with (
            NodeStore(tmp_path / "c", 10**9, free_reserve=0, frozen_s=0.3) as store,
            process("-c", HOLDER, str(tmp_path / "c" / "ledger.lock")) as holder,
        ):
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            stop(holder.pid)
            with store.open(ref) as shard:
                assert shard.pread(0, SIZE) == body_of(name, SIZE)
            assert store.metrics.cache_errors == {"ETIMEDOUT": 1}


def test_who_was_frozen_while_it_looked_at_a_shard_is_not_waited_for(tmp_path: Path) -> None:
    name = "shard-000000.tar"
    body = body_of(name, SIZE)
    with range_server() as server:
        ref = ShardRef(server.put(f"/{name}", body), SIZE, blake3(body).hexdigest())
        with NodeStore(tmp_path / "c", 10**9, free_reserve=0) as store:
            assert store.prefetch(ref)
        (file,) = (tmp_path / "c").glob("*.shard")
        # a descriptor of one's own is as good as a process: the lock is the file's
        holder = HOLDER.replace("O_RDWR | os.O_CREAT", "O_RDONLY")
        with process("-c", holder, str(file)) as looking:
            assert looking.stdout is not None
            assert looking.stdout.readline() == "held\n"
            stop(looking.pid)
            with NodeStore(tmp_path / "c", 10**9) as store, store.open(ref) as shard:
                assert shard.pread(0, SIZE) == body
                assert store.metrics.hits == 1
        assert os.access(file, os.R_OK)
