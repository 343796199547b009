"""Which buckets may be filled: as the service says, and no longer than it is patient."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from checkpointing.errors import SaveError
from checkpointing.save import bucket_flow_control as module
from checkpointing.save.bucket_flow_control import BucketFlowControl


def flow_of(buckets: int = 2, timeout_s: float = 60.0) -> BucketFlowControl:
    flow = BucketFlowControl(rank=1, timeout_s=timeout_s)
    flow.renew(buckets)
    flow.begin(5)
    return flow


def emptied(bucket: int, step: int = 5, rank: int = 1) -> dict[str, object]:
    return {"kind": "emptied", "step": step, "of": rank, "bucket": bucket}


def fill_all(flow: BucketFlowControl, count: int = 2) -> list[int]:
    taken = [flow.free() for _ in range(count)]
    for bucket in taken:
        flow.fill(bucket)
    return taken


def test_each_bucket_is_free_once_and_again_when_it_was_emptied() -> None:
    flow = flow_of()
    assert fill_all(flow) == [0, 1]
    threading.Timer(0.05, flow.handle, [emptied(1)]).start()
    assert flow.free() == 1


@pytest.mark.parametrize("message", [emptied(0, step=4), emptied(0, rank=0), emptied(7)])
def test_what_is_said_of_others_frees_nothing(message: dict[str, object]) -> None:
    flow = flow_of(timeout_s=0.0)
    fill_all(flow)
    flow.handle(message)
    with pytest.raises(SaveError, match="has emptied no bucket for 0 s"):
        flow.free()
    assert flow.is_broken


class Clock:
    """One that stands still unless it is moved, and counts who looks at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.looks = 0.0, 0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=self._look))

    def _look(self) -> float:
        self.looks += 1
        return self.now_s


def test_who_waits_for_its_turn_waits_as_long_as_something_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    flow = flow_of(timeout_s=1.0)
    fill_all(flow)
    with ThreadPoolExecutor(1) as threads:
        turn = threads.submit(flow.free)
        for _ in range(5):
            before = clock.looks
            clock.now_s += 0.9
            flow.handle(emptied(0, rank=0))
            while clock.looks < before + 2 and not turn.done():  # and who waits has looked
                time.sleep(0.01)
        flow.handle(emptied(0))
        assert turn.result() == 0


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"kind": "unread", "step": 5, "error": "the store is full"}, "the store is full"),
        ({"kind": "service_lost"}, "has died while it read"),
        ({"kind": "displaced"}, "another process has joined"),
    ],
)
def test_who_waits_hears_that_nobody_reads_on(message: dict[str, object], why: str) -> None:
    flow = flow_of()
    fill_all(flow)
    threading.Timer(0.05, flow.handle, [message]).start()
    with pytest.raises(SaveError, match=why):
        flow.free()
    assert flow.is_broken
    assert flow.await_empty() is None  # for there is going to be new memory
    flow.renew(2)
    assert not flow.is_broken


def test_a_service_that_dies_when_nothing_is_in_its_hands_is_no_trouble() -> None:
    flow = flow_of()
    flow.handle({"kind": "service_lost"})
    flow.handle({"kind": "unread", "step": 4, "error": "of another step"})
    assert not flow.is_broken
    assert flow.await_empty() is None


def test_buckets_that_are_still_being_read_are_waited_for() -> None:
    flow = flow_of()
    for bucket in fill_all(flow):
        threading.Timer(0.05, flow.handle, [emptied(bucket)]).start()
    assert flow.await_empty() is None
    late = flow_of(timeout_s=0.0)
    fill_all(late)
    assert "has emptied no bucket" in str(late.await_empty())
    assert not late.is_broken  # it may be read later on
