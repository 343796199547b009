"""The node store in one process, over a server that tells what was asked of it."""

import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from blake3 import blake3

from data.cache.downloads.download_job import DownloadJob
from data.cache.files import shard_record
from data.cache.files.cache_entry import ShardRef
from data.cache.node_store import NodeStore
from data.errors import DamagedShardError, DataError, FetchError, ObjectChangedError, ShardError
from data.source.host_limits import Limits
from data.source.protocol import ObjectVersion
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.integration.service.service_nodes import until
from tests.services.fault_proxy import fault_proxy
from tests.services.faults import SLOW_DOWN, FlipByte, ResetDownload
from tests.services.range_server import Gate, RangeServer, Served

MIB = 1 << 20
BODY = os.urandom(3 * MIB + 7)
QUICK = SourceRetryPolicy(budget_s=1.0, first_s=0.01, longest_s=0.05, least_tries=2)


def sources() -> Sources:
    return Sources(retry=QUICK)


def make(folder: Path, budget: int = 100 * MIB, **more: object) -> NodeStore:
    return NodeStore(
        folder / "cache",
        budget,
        **{"sources": sources(), "free_reserve": 0, **more},  # type: ignore[arg-type]
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[NodeStore]:
    with make(tmp_path) as store:
        yield store


def whole(url: str, body: bytes = BODY) -> ShardRef:
    return ShardRef(url, len(body), blake3(body).hexdigest())


def read_all(store: NodeStore, ref: ShardRef, size: int = len(BODY)) -> bytes:
    with store.open(ref) as shard:
        return shard.pread(0, size)


def shards(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*.shard"))


class TestReading:
    def test_a_shard_is_fetched_once_and_then_read_without_its_source(
        self, store: NodeStore, server: RangeServer, tmp_path: Path
    ) -> None:
        ref = whole(server.put("/x.tar", BODY))
        assert read_all(store, ref) == BODY
        store.prefetch(ref)
        assert len(server.seen) == 1
        server.objects.clear()
        assert read_all(store, ref) == BODY
        with make(tmp_path) as other:
            assert read_all(other, ref) == BODY
            assert (other.metrics.hits, other.metrics.bytes_fetched) == (1, 0)
        assert store.metrics.bytes_fetched == len(BODY)

    def test_the_first_bytes_come_before_the_whole_shard(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        server.bytes_per_s = MIB / 2
        with store.open(whole(server.put("/x.tar", BODY))) as shard:
            assert shard.pread(1000, 500) == BODY[1000:1500]
            assert not shard.local
            assert server.sent < len(BODY)
            server.bytes_per_s = None
            assert shard.pread(2 * MIB, MIB) == BODY[2 * MIB : 3 * MIB]
        assert len(server.seen) == 1 + store.metrics.bypasses, "a stalled download is read past"

    def test_a_sample_that_a_slow_download_brings_late_is_asked_for_by_itself(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        server.bytes_per_s = MIB / 4
        with store.open(whole(server.put("/x.tar", BODY))) as shard:
            assert shard.pread(len(BODY) - 9, 9) == BODY[-9:]
            assert not shard.local
            server.bytes_per_s = None
            size = len(BODY) // 32  # beyond what may be read twice
            assert shard.pread(len(BODY) - size, size) == BODY[-size:]
            assert store.metrics.bypasses == 1
        assert {first for _, first in server.seen} == {0, len(BODY) - 9}

    def test_who_compares_does_not_even_wait_for_the_version(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        known, ask = threading.Event(), store.sources.stat

        def late(url: str) -> ObjectVersion:
            assert known.wait(120)
            return ask(url)

        with (
            mock.patch.object(store.sources, "stat", late),
            store.open(whole(server.put("/x.tar", BODY))) as shard,
        ):
            assert shard.pread(2 * MIB, 9, compares=True) == BODY[2 * MIB : 2 * MIB + 9]
            assert not known.is_set()
            known.set()
            assert shard.pread(0, len(BODY)) == BODY

    def test_more_shards_than_are_fetched_at_a_time_wait_and_their_samples_do_not(
        self, tmp_path: Path, server: RangeServer
    ) -> None:
        refs = [whole(server.put(f"/{name}.tar", BODY)) for name in "ab"]
        held = Gate(server)
        patient = Sources(retry=QUICK)
        with (
            make(tmp_path, downloads=1, sources=patient) as store,
            store.open(refs[0]) as first,
        ):
            held.wait_for(1)
            with store.open(refs[1]) as second:
                assert second.pread(MIB, 100) == BODY[MIB : MIB + 100]
                assert (held.count, held.opened) == (1, False)
            held.open()
            assert first.pread(0, len(BODY)) == BODY
            assert store.prefetch(refs[1])
        assert held.count == 2

    def test_whole_shards_leave_requests_to_samples(
        self, tmp_path: Path, server: RangeServer
    ) -> None:
        refs = [whole(server.put(f"/{name}.tar", BODY)) for name in "abc"]
        held = Gate(server)
        few = Sources(retry=QUICK, limits=Limits(requests=2))
        with make(tmp_path, sources=few) as store:
            shards = [store.open(ref) for ref in refs]
            held.wait_for(1)
            for shard in shards[1:]:
                assert shard.pread(MIB, 100) == BODY[MIB : MIB + 100]
            assert (held.count, held.opened) == (1, False)
            held.open()
            for shard in shards:
                assert shard.pread(0, len(BODY)) == BODY

    def test_a_range_far_ahead_is_asked_for_by_itself(
        self, tmp_path: Path, server: RangeServer
    ) -> None:
        server.bytes_per_s = MIB / 2
        with (
            make(tmp_path, wait_bytes=MIB) as store,
            store.open(whole(server.put("/x.tar", BODY))) as shard,
        ):
            shard.pread(0, 1)
            assert shard.pread(len(BODY) - 9, 9) == BODY[-9:]
            assert not shard.local
            assert ("/x.tar", len(BODY) - 9) in server.seen

    def test_equal_names_are_not_equal_shards(self, store: NodeStore, server: RangeServer) -> None:
        other = BODY[::-1]
        one, two = server.put("/a/x.tar", BODY), server.put("/b/x.tar", other)
        assert read_all(store, ShardRef(one)) == BODY
        assert read_all(store, ShardRef(two)) == other
        assert read_all(store, whole(one)) == BODY

    def test_a_replaced_object_is_not_read_from_the_cache(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        url = server.put("/x.tar", BODY)
        assert read_all(store, ShardRef(url)) == BODY
        server.put("/x.tar", BODY[::-1], etag='"2"')
        assert read_all(store, ShardRef(url)) == BODY[::-1]

    def test_a_job_that_has_not_ended_is_not_joined_by_who_comes_after_a_change(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        url = server.put("/x.tar", BODY)
        go_on = threading.Event()
        run = DownloadJob.run

        def run_and_wait(job: DownloadJob) -> None:
            run(job)
            go_on.wait(60)

        with mock.patch.object(DownloadJob, "run", run_and_wait):
            assert read_all(store, ShardRef(url)) == BODY
            server.put("/x.tar", BODY[::-1], etag='"2"')
            found = read_all(store, ShardRef(url))
            go_on.set()
        assert found == BODY[::-1]

    def test_a_renewed_signature_finds_the_same_shard(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        url = server.put("/x.tar", BODY)
        read_all(store, whole(url + "?id=1&X-Amz-Signature=a&X-Amz-Date=1"))
        store.prefetch(whole(url + "?id=1&X-Amz-Signature=a&X-Amz-Date=1"))
        read_all(store, whole(url + "?id=1&X-Amz-Signature=b&X-Amz-Date=2"))
        assert len(server.seen) == 1
        read_all(store, whole(url + "?id=2&X-Amz-Signature=b&X-Amz-Date=2"))
        assert len(server.seen) == 2

    def test_a_shard_larger_than_the_cache_is_read_past_it(
        self, tmp_path: Path, server: RangeServer
    ) -> None:
        with make(tmp_path, budget=MIB) as store:
            assert read_all(store, whole(server.put("/x.tar", BODY))) == BODY
            assert not store.prefetch(whole(server.url + "/x.tar"))
            assert store.metrics.bypasses == 1
        assert not shards(tmp_path)

    def test_many_threads_make_one_download(self, store: NodeStore, server: RangeServer) -> None:
        ref = whole(server.put("/x.tar", BODY))
        got: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: got.append(read_all(store, ref))) for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == [BODY] * 16
        assert len(server.seen) == 1

    def test_the_end_of_a_shard_is_an_error(self, store: NodeStore, server: RangeServer) -> None:
        with store.open(whole(server.put("/x.tar", BODY))) as shard:
            for _ in range(2):
                with pytest.raises(ShardError, match=rf"offset {len(BODY)}: it ends here"):
                    shard.pread(len(BODY) - 1, 2)
                store.prefetch(shard.ref)
            with pytest.raises(DataError, match="outside the shard"):
                shard.pread(-1, 2)
        with pytest.raises(DataError, match="is closed"):
            shard.pread(0, 1)


class TestLocal:
    def test_it_is_read_in_place(self, store: NodeStore, tmp_path: Path) -> None:
        path = tmp_path / "x.tar"
        path.write_bytes(BODY)
        assert read_all(store, ShardRef(str(path))) == BODY
        assert store.prefetch(ShardRef(str(path)))
        assert not shards(tmp_path)
        with pytest.raises(FetchError, match="its manifest says 5"):
            store.open(ShardRef(str(path), 5))
        with pytest.raises(FetchError, match="No such file"):
            store.open(ShardRef(str(tmp_path / "y.tar")))
        with store.open(ShardRef(str(path))) as shard:
            with pytest.raises(DamagedShardError, match="the file itself"):
                shard.quarantine("bad header")
            os.truncate(path, 10)
            with pytest.raises(ShardError, match="offset 10: it ends here"):
                shard.pread(5, 10)
        assert path.exists()

    def test_or_copied_on_demand(self, tmp_path: Path) -> None:
        path = tmp_path / "x.tar"
        path.write_bytes(BODY)
        with make(tmp_path, cache_local=True) as store:
            assert read_all(store, ShardRef(str(path))) == BODY
            store.prefetch(ShardRef(str(path)))
        assert [one.stat().st_size for one in shards(tmp_path)] == [len(BODY)]


class TestFailing:
    def test_a_missing_shard_is_named_on_the_read(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        server.put("/x.tar", BODY)
        with store.open(whole(server.url + "/none.tar")) as bad:
            for _ in range(2):
                with pytest.raises(FetchError, match=r"none\.tar: cannot be fetched: 404") as one:
                    bad.pread(0, 10)
                assert len(one.value.attempts) == 1
        assert read_all(store, whole(server.url + "/x.tar")) == BODY
        server.put("/none.tar", BODY)
        assert read_all(store, whole(server.url + "/none.tar")) == BODY  # a new open tries anew

    def test_another_length_than_the_manifest_says(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        url = server.put("/x.tar", BODY)
        with pytest.raises(FetchError, match=f"is {len(BODY)} bytes long and its manifest says 9"):
            read_all(store, ShardRef(url, 9), 9)

    def test_an_object_replaced_half_way_is_fetched_anew(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        new = Served(BODY[::-1], '"2"')
        ref = ShardRef(server.put("/x.tar", BODY, then=new, at=MIB))
        with store.open(ref) as shard:
            size = len(BODY) // 8  # too much for a request of its own
            assert shard.pread(2 * MIB, size) == BODY[::-1][2 * MIB : 2 * MIB + size]
        assert store.metrics.refetches == 1

    def test_but_whoever_read_the_old_one_is_told(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        new = Served(BODY[::-1], '"2"')
        ref = ShardRef(server.put("/x.tar", BODY, then=new, at=MIB))
        server.bytes_per_s = MIB / 2
        with store.open(ref) as shard:
            assert shard.pread(0, 1000) == BODY[:1000]
            server.bytes_per_s = None
            with pytest.raises(DamagedShardError, match="another version"):
                shard.pread(2 * MIB, len(BODY) // 8)  # too much for a request of its own

    def test_an_object_that_always_changes(self, store: NodeStore, server: RangeServer) -> None:
        third = Served(BODY, '"3"')
        second = Served(BODY, '"2"', then=third, at=MIB)
        ref = ShardRef(server.put("/x.tar", BODY, then=second, at=MIB))
        with pytest.raises(ObjectChangedError, match="changed while it was being read"):
            read_all(store, ref)

    def test_a_broken_download_is_gone_on_with(self, tmp_path: Path, server: RangeServer) -> None:
        url = server.put("/x.tar", BODY)
        with fault_proxy(server.url) as proxy:
            ref = whole(url.replace(server.url, proxy.endpoint))
            proxy.inject(ResetDownload(2 * MIB), skip=1, times=1)  # after the one of the length
            proxy.inject(SLOW_DOWN, skip=1)
            with (
                make(tmp_path) as store,
                pytest.raises(FetchError, match="given up after") as caught,
            ):
                read_all(store, ref)
            assert any("503" in line for line in caught.value.attempts)
            proxy.clear()
            with make(tmp_path) as store:
                assert read_all(store, ref) == BODY
                store.prefetch(ref)
                assert store.metrics.bytes_resumed >= MIB
                assert store.metrics.bytes_fetched <= len(BODY) - MIB
            assert server.seen[-1][1] >= MIB

    def test_who_waited_for_another_process_hears_why_it_failed(
        self, tmp_path: Path, server: RangeServer
    ) -> None:
        server.bytes_per_s = 2.0 * MIB
        ref = ShardRef(server.put("/x.tar", BODY, more=5))
        with make(tmp_path) as one, make(tmp_path) as two, one.open(ref) as first:
            first.pread(0, 1)  # so it is the one that downloads
            with two.open(ref) as second:
                for shard in (first, second):
                    with pytest.raises(FetchError, match="given up after") as caught:
                        shard.pread(len(BODY), 5)
                    assert len(caught.value.attempts) > 1
            assert (one.metrics.downloads, two.metrics.downloads) == (1, 0)

    def test_a_closed_store_ends_those_who_wait(self, tmp_path: Path, server: RangeServer) -> None:
        server.bytes_per_s = 0.5 * MIB
        with make(tmp_path) as store, store.open(whole(server.put("/x.tar", BODY))) as shard:
            shard.pread(0, 1)
            store.close()
            with pytest.raises(FetchError, match="the store was closed"):
                shard.pread(0, len(BODY))
            with pytest.raises(DataError, match="the store is closed"):
                store.open(shard.ref)

    @pytest.mark.parametrize("hashed", [False, True])
    def test_what_nothing_identifies_is_not_gone_on_with(
        self, tmp_path: Path, server: RangeServer, hashed: bool
    ) -> None:
        """A server without tags: only the hash can tell that it is the same object."""
        server.bytes_per_s = MIB / 2
        ref = (
            whole(server.put("/x.tar", BODY, etag=None))
            if hashed
            else ShardRef(server.url + "/x.tar")
        )
        server.put("/x.tar", BODY, etag=None)
        with make(tmp_path) as store, store.open(ref) as shard:
            shard.pread(MIB, 1)
            until(
                lambda: any(p.stat().st_size for p in (tmp_path / "cache").glob("*.part")), "bytes"
            )
            store.close()
            with pytest.raises(FetchError, match="was closed"):
                shard.pread(0, len(BODY))
        server.bytes_per_s = None
        with make(tmp_path) as store:
            assert read_all(store, ref) == BODY
            assert (store.metrics.bytes_resumed > 0) == hashed


class TestDamage:
    def test_wrong_bytes_on_the_way_are_fetched_once_more(
        self, tmp_path: Path, server: RangeServer
    ) -> None:
        url = server.put("/x.tar", BODY)
        with fault_proxy(server.url) as proxy, make(tmp_path, read_growing=False) as store:
            ref = whole(url.replace(server.url, proxy.endpoint))
            proxy.inject(FlipByte(MIB), skip=1, times=1)
            assert read_all(store, ref) == BODY
            assert (store.metrics.quarantined, store.metrics.refetches) == (1, 1)
            assert len(list((tmp_path / "cache" / "quarantine").iterdir())) == 1

    def test_and_never_taken_for_good(self, tmp_path: Path, server: RangeServer) -> None:
        url = server.put("/x.tar", BODY[:-1] + bytes([BODY[-1] ^ 1]))
        with (
            make(tmp_path, read_growing=False) as store,
            pytest.raises(DamagedShardError, match="downloaded twice with bytes that differ"),
        ):
            read_all(store, whole(url))
        assert not shards(tmp_path)

    def test_what_is_damaged_at_its_source_is_fetched_twice_for_all_who_wait(
        self, tmp_path: Path, server: RangeServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = server.put("/x.tar", BODY[:-1] + bytes([BODY[-1] ^ 1]))
        held = Gate(server)
        with ExitStack() as stack:
            patient: dict[str, Any] = {"read_growing": False, "sources": Sources(retry=QUICK)}
            stores = [stack.enter_context(make(tmp_path, **patient)) for _ in range(4)]
            opened = [store.open(whole(url)) for store in stores]
            held.wait_for(1)
            while any(shard._job is None or shard._job.entry is None for shard in opened):
                time.sleep(0.01)
            held.open()
            for shard in opened:
                with pytest.raises(
                    DamagedShardError, match="downloaded twice with bytes that differ"
                ):
                    shard.pread(0, 10)
        assert len(server.streams) == 2
        assert "ShardRef" not in caplog.text
        assert f"instead of {blake3(BODY).hexdigest()}" in caplog.text

    def test_who_read_them_while_they_came_is_told(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        bad = bytes([BODY[0] ^ 1]) + BODY[1:]
        server.bytes_per_s = MIB / 2
        with store.open(whole(server.put("/x.tar", bad))) as shard:
            shard.pread(0, 10)
            server.put("/x.tar", BODY)
            server.bytes_per_s = None
            with pytest.raises(DamagedShardError, match="do not use what was read"):
                shard.pread(MIB, len(BODY) - MIB)

    def test_who_does_not_read_on_is_told_by_the_store(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        bad = BODY[:-1] + bytes([BODY[-1] ^ 1])
        server.bytes_per_s = MIB / 2
        ref = whole(server.put("/x.tar", bad))
        with store.open(ref) as shard:
            shard.pread(0, 10)
            store.check()
            server.bytes_per_s = None
        with pytest.raises(DamagedShardError, match="in earlier batches"):
            store.settle()
        store.check()

    def test_who_compares_what_it_reads_is_told_of_nothing(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        """What is not right on its way comes right in the end, or not at all."""
        bad = bytes([BODY[0] ^ 1]) + BODY[1:]
        server.bytes_per_s = MIB / 2
        with store.open(whole(server.put("/x.tar", bad))) as shard:
            assert shard.pread(0, 10, compares=True) == bad[:10]
            server.put("/x.tar", BODY)
            server.bytes_per_s = None
            shard.quarantine("other bytes")
            assert shard.pread(0, 10, compares=True) == BODY[:10]
        store.settle()
        assert store.metrics.quarantined == 1

    def test_a_reported_shard_is_fetched_anew_once(
        self, store: NodeStore, server: RangeServer, tmp_path: Path
    ) -> None:
        ref = whole(server.put("/x.tar", BODY))
        store.prefetch(ref)
        with store.open(ref) as shard, store.open(ref) as other:
            _break(shards(tmp_path)[0], 5)
            assert shard.pread(0, 10) != BODY[:10]
            shard.quarantine("bad header")
            assert shard.pread(0, 10) == BODY[:10]
            other.quarantine("bad header, too")  # of the same file: is not the second time
            assert other.pread(0, 10) == BODY[:10]
            assert len(server.seen) == 2 + store.metrics.bypasses, "a slow download is read past"
            store.prefetch(ref)
            with store.open(ref) as third:
                _break(shards(tmp_path)[0], 5)
                with pytest.raises(DamagedShardError, match="did not help"):
                    third.quarantine("bad header")

    def test_what_is_as_its_manifest_says_is_not_fetched_anew(
        self, store: NodeStore, server: RangeServer
    ) -> None:
        ref = whole(server.put("/x.tar", BODY))
        store.prefetch(ref)
        with store.open(ref) as shard:
            with pytest.raises(DamagedShardError, match="damaged when it was written"):
                shard.quarantine("bad header")
            assert shard.pread(0, 10) == BODY[:10]
        assert len(server.seen) == 1

    def test_a_shard_of_another_length_is_not_trusted(
        self, store: NodeStore, server: RangeServer, tmp_path: Path
    ) -> None:
        ref = whole(server.put("/x.tar", BODY))
        store.prefetch(ref)
        os.truncate(shards(tmp_path)[0], len(BODY) - 1)
        assert read_all(store, ref) == BODY
        assert len(server.seen) == 2

    @pytest.mark.parametrize("damaged", [False, True])
    def test_after_a_crash_of_the_machine_the_hash_is_looked_at(
        self,
        tmp_path: Path,
        server: RangeServer,
        monkeypatch: pytest.MonkeyPatch,
        damaged: bool,
    ) -> None:
        ref = ShardRef(server.put("/x.tar", BODY))  # whose hash nobody told
        with make(tmp_path) as store:
            store.prefetch(ref)
        if damaged:
            path = shards(tmp_path)[0]
            path.write_bytes(bytes(len(BODY)))
        monkeypatch.setattr(shard_record, "boot", lambda: "another")
        with make(tmp_path) as store:
            assert read_all(store, ref) == BODY
        assert len(server.seen) == (2 if damaged else 1)

    def test_a_part_of_before_a_crash_is_begun_anew(
        self, tmp_path: Path, server: RangeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ref = ShardRef(server.put("/x.tar", BODY, more=5))
        with make(tmp_path) as store, pytest.raises(FetchError):
            read_all(store, ref, len(BODY) + 5)
        (part,) = (tmp_path / "cache").glob("*.part")
        assert part.stat().st_size > MIB
        part.write_bytes(bytes(part.stat().st_size))
        monkeypatch.setattr(shard_record, "boot", lambda: "another")
        server.put("/x.tar", BODY + b"12345")
        with make(tmp_path) as store:
            assert read_all(store, ref, len(BODY) + 5) == BODY + b"12345"


class TestFolder:
    def test_it_is_this_users_alone(self, tmp_path: Path, server: RangeServer) -> None:
        (tmp_path / "cache").mkdir(mode=0o755)
        with make(tmp_path) as store:
            store.prefetch(whole(server.put("/x.tar", BODY)))
            store.publish_plan([("s3://a/b", 1.0)])
        assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
        for path in (tmp_path / "cache").rglob("*"):
            assert not path.stat().st_mode & 0o077

    @pytest.mark.parametrize("mode", [0o777, 0o775, 0o722])
    def test_one_that_others_can_write_in_is_refused(self, tmp_path: Path, mode: int) -> None:
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(mode)
        with pytest.raises(DataError, match="other users can write to it"):
            make(tmp_path)

    def test_a_link_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(DataError, match="not a folder that this user owns"):
            make(tmp_path)

    def test_a_pipe_is_read_to_its_end_into_the_cache(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(BODY)
        url = f"pipe:cat {tmp_path}/x"
        with make(tmp_path) as store, pytest.raises(FetchError, match="are refused"):
            read_all(store, whole(url))
        with make(tmp_path, sources=Sources(pipes="exec")) as store:
            with pytest.raises(DataError, match="make an index"):
                read_all(store, ShardRef(url))
            with store.open(whole(url)) as shard:
                assert shard.pread(len(BODY) - 9, 9) == BODY[-9:]
            until(lambda: len(shards(tmp_path)) == 1, "what was read from the pipe is in the cache")


def _break(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\0\1\2\3")
