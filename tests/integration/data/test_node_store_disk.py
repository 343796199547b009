"""A cache whose disk is full, fails or vanishes: reads go on, from the source."""

import errno
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from blake3 import blake3

from data.cache import cache_maintenance
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from tests.integration.service.service_nodes import until
from tests.services.fault_fs import FaultFs, Rule
from tests.services.range_server import RangeServer, range_server

MIB = 1 << 20
SIZE = MIB + 5
BODIES = {f"/{i}.tar": os.urandom(SIZE) for i in range(4)}


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as server:
        for path, body in BODIES.items():
            server.put(path, body)
        yield server


def refs(server: RangeServer) -> list[ShardRef]:
    return [
        ShardRef(server.url + path, SIZE, blake3(body).hexdigest()) for path, body in BODIES.items()
    ]


def read_all(store: NodeStore, server: RangeServer) -> None:
    for ref, body in zip(refs(server), BODIES.values(), strict=True):
        with store.open(ref) as shard:
            assert shard.pread(7, SIZE - 7) == body[7:]
            assert shard.pread(0, 9) == body[:9]


def test_a_full_disk_makes_room(small_disk: Path, server: RangeServer) -> None:
    """The budget is larger than the disk: 3 of 4 shards fit."""
    with NodeStore(small_disk / "c", 10 * MIB, free_reserve=0) as store:
        read_all(store, server)
        read_all(store, server)
        assert store.metrics.evictions > 0
        assert store.metrics.bypasses == 0
        assert not store.metrics.cache_errors
    assert all(right for _, right in cache_maintenance.verified(small_disk / "c"))


def test_space_is_reserved_before_the_bytes_come(small_disk: Path, server: RangeServer) -> None:
    server.bytes_per_s = MIB / 4
    with (
        NodeStore(small_disk / "c", 10 * MIB, free_reserve=0) as store,
        store.open(refs(server)[0]) as shard,
    ):
        shard.pread(0, 1)
        (part,) = (small_disk / "c").glob("*.part")
        status = part.stat()
        assert status.st_size < SIZE <= status.st_blocks * 512


def test_space_is_left_for_others(small_disk: Path, server: RangeServer) -> None:
    with NodeStore(small_disk / "c", 10 * MIB, free_reserve=2 * MIB) as store:
        read_all(store, server)
        for ref in refs(server):
            store.prefetch(ref)
        status = os.statvfs(small_disk)
        assert status.f_bavail * status.f_frsize >= 2 * MIB
        assert len(cache_maintenance.listed(small_disk / "c")) == 1


def test_a_disk_that_others_filled_is_read_past(
    small_disk: Path, server: RangeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with NodeStore(small_disk / "c", 10 * MIB, free_reserve=0) as store:
        with (small_disk / "others").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(MIB // 2))
        caplog.set_level(logging.WARNING)
        read_all(store, server)
        assert store.metrics.bypasses == 8
        # a download of a test before this one may end only now
        assert sum(str(small_disk) in text for text in caplog.messages) <= 1
        (small_disk / "others").unlink()
        read_all(store, server)
        assert store.metrics.bypasses == 8
        assert len(cache_maintenance.listed(small_disk / "c")) == 3


def test_a_disk_that_fills_half_way(faulty_folder: FaultFs, server: RangeServer) -> None:
    """Here no space can be reserved, so the download finds out as it writes."""
    server.bytes_per_s = MIB / 4
    with NodeStore(faulty_folder.path / "c", 10 * MIB, free_reserve=0) as store:
        with store.open(refs(server)[0]) as shard:
            body = BODIES["/0.tar"]
            assert shard.pread(0, 10) == body[:10]
            faulty_folder.set_rules(Rule(("write",), error="ENOSPC"))
            server.bytes_per_s = None
            assert shard.pread(SIZE - 10, 10) == body[-10:]
            until(
                lambda: bool(store.metrics.cache_errors), "it fails"
            )  # the end may come by itself
            assert store.metrics.cache_errors == {"ENOSPC": 1}
        faulty_folder.set_rules()
        read_all(store, server)
        assert len(cache_maintenance.listed(faulty_folder.path / "c")) == 4
    assert all(right for _, right in cache_maintenance.verified(faulty_folder.path / "c"))


@pytest.mark.parametrize(
    "rule",
    [
        Rule(("write", "create", "open_write", "rename", "chmod", "unlink"), error="EROFS"),
        Rule(("rename",), error="EIO"),
        Rule(("write",), error="EIO", skip=3),
        Rule(("chmod",), error="EIO", path="part"),
        Rule(("getattr", "open", "readdir"), error="ESTALE"),
    ],
    ids=lambda rule: f"{rule.error} of {rule.operations[0]}",
)
def test_a_failing_disk_is_left_alone_for_a_while(
    faulty_folder: FaultFs, server: RangeServer, rule: Rule, caplog: pytest.LogCaptureFixture
) -> None:
    cache = faulty_folder.path / "c"
    with NodeStore(cache, 10 * MIB, free_reserve=0, retry_cache_s=0.0) as store:
        store.prefetch(refs(server)[0])
        faulty_folder.set_rules(rule)
        read_all(store, server)
        assert store.metrics.cache_errors[str(rule.error)] > 0
        assert store.metrics.bypasses > 0
        lines = [text for text in caplog.messages if f"{cache} cannot be used" in text]
        assert len(lines) == 1
        faulty_folder.set_rules()
        read_all(store, server)
        assert len(cache_maintenance.listed(cache)) == 4
    assert all(right for _, right in cache_maintenance.verified(cache))


def test_a_cached_shard_that_cannot_be_read_back(
    faulty_folder: FaultFs, server: RangeServer
) -> None:
    cache = faulty_folder.path / "c"
    ref = refs(server)[0]
    with NodeStore(cache, 10 * MIB, free_reserve=0, retry_cache_s=0.0) as store:
        store.prefetch(ref)
        with store.open(ref) as shard:
            assert shard._file is not None
            os.posix_fadvise(shard._file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            faulty_folder.set_rules(Rule(("read",), error="EIO", path="shard$"))
            assert shard.pread(5, 10) == BODIES["/0.tar"][5:15]
        assert store.metrics.cache_errors == {"EIO": 1}
        faulty_folder.set_rules()
        read_all(store, server)


def test_a_folder_that_vanishes(tmp_path: Path, server: RangeServer) -> None:
    server.bytes_per_s = MIB / 4
    with NodeStore(tmp_path / "c", 10 * MIB, free_reserve=0, retry_cache_s=0.0) as store:
        with store.open(refs(server)[0]) as shard:
            assert shard.pread(0, 10) == BODIES["/0.tar"][:10]
            shutil.rmtree(tmp_path / "c")
            server.bytes_per_s = None
            assert shard.pread(0, SIZE) == BODIES["/0.tar"]
            until(lambda: bool(store.metrics.cache_errors), "it fails")  # after the last byte
        assert store.metrics.cache_errors == {"ENOENT": 1}
        read_all(store, server)
        assert len(cache_maintenance.listed(tmp_path / "c")) >= 3


def test_a_place_that_is_no_folder(tmp_path: Path, server: RangeServer) -> None:
    (tmp_path / "file").touch()
    with NodeStore(tmp_path / "file" / "c", 10 * MIB) as store:
        read_all(store, server)
        assert store.metrics.cache_errors == {errno.errorcode[errno.ENOTDIR]: 1}
        assert store.metrics.bypasses == 8


def test_upkeep(tmp_path: Path, server: RangeServer) -> None:
    cache = tmp_path / "c"
    with NodeStore(cache, 10 * MIB, free_reserve=0) as store:
        for ref in refs(server):
            store.prefetch(ref)
        planned_s = time.monotonic()
        store.publish_plan([(refs(server)[0], 3000.0), (refs(server)[1], 9000.0)])
        listed = {one.entry.name: one for one in cache_maintenance.listed(cache)}
        past_s = time.monotonic() - planned_s
        assert 2999 - past_s < (listed["0.tar"].next_use_s or 0) <= 3000
        assert listed["2.tar"].next_use_s is None
        assert listed["2.tar"].url == server.url + "/2.tar"
        assert all(one.whole for one in listed.values())
        path = next(cache.glob("*-2.tar.shard"))
        path.write_bytes(bytes(SIZE))
        assert {entry.name for entry, right in cache_maintenance.verified(cache) if not right} == {
            "2.tar"
        }
        assert len(cache_maintenance.listed(cache)) == 3
        assert cache_maintenance.prune(cache, SIZE) == 2 * SIZE
        assert [one.entry.name for one in cache_maintenance.listed(cache)] == ["0.tar"]
        assert not list((cache / "quarantine").iterdir())
        with store.open(refs(server)[0]):
            assert cache_maintenance.prune(cache, 0) == 0  # it is open
        assert cache_maintenance.prune(cache, 0) == SIZE
