from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.service.upload_bandwidth import BURST_S, BandwidthTokenBucket, ThrottledStorage
from checkpointing.storage.memory_storage import MemoryStorage


class Clock:
    """Time passes by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30), st.floats(0.1, 100))
def test_never_faster_than_the_rate_and_never_idle(amounts: list[float], rate: float) -> None:
    clock = Clock()
    bucket = BandwidthTokenBucket(rate, clock, clock.sleep)
    for amount in amounts:
        bucket.take(amount)
    exact_s = max(0.0, sum(amounts) / rate - BURST_S)
    assert abs(clock.now_s - exact_s) <= 1e-6 * (1 + exact_s)


@given(st.floats(0, 1e6))
def test_a_pause_saves_up_no_more_than_a_burst(pause_s: float) -> None:
    clock = Clock()
    bucket = BandwidthTokenBucket(10.0, clock, clock.sleep)
    clock.sleep(pause_s)
    start_s = clock.now_s
    bucket.take(10.0)
    assert clock.now_s - start_s >= 1.0 - BURST_S - 1e-6 * (1 + pause_s)


def test_records_do_not_wait_behind_packs() -> None:
    taken: list[float] = []

    class Bucket(BandwidthTokenBucket):
        def take(self, amount: float) -> None:
            taken.append(amount)

    storage = ThrottledStorage(MemoryStorage("memory://throttled"), Bucket(1.0))
    pack = "packs/00/" + "0" * 32 + ".pack"
    storage.put(pack, [b"abc", b"de"])
    storage.put("leases/aaaaaaaa.0000000001.lease", [b"lease"])
    assert storage.create("runs/r/steps/x", b"x")
    storage.replace("runs/r/marks/x", b"x")
    assert taken == [5]
    rest: list[Any] = [storage.get(pack), bytes(storage.get_range(pack, 1, 2)), storage.url]
    assert rest == [b"abcde", b"bc", "memory://throttled"]
    assert [entry.key for entry in storage.list("packs/")] == [pack]
    storage.delete([pack])
    assert storage.list("packs/") == []
    storage.close()
