"""The parts of a step follow one another, and add up to it whatever happens in between."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpckit.events.step_phases import PARTS, Part
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.timing.snapshot_waits import SnapshotWaits
from hpckit.trainer.timing.step_phases import DevicePhaseTimeline, HostPhaseTimeline, StepPhases

SLEEP_S = 0.05
Move = tuple[Part, float, bool]


class Stream:
    """A GPU's stream that works off what it is given: each event passes at a known moment, and is
    passed when it is waited for, or when the stream has come so far by itself."""

    def __init__(self) -> None:
        self.now_s, self.passed_s = 0.0, -1.0
        self.made = 0

    def event(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self._stream, self.at_s = stream, -1.0

    def record(self) -> None:
        self.at_s = self._stream.now_s

    def query(self) -> bool:
        return self.at_s <= self._stream.passed_s

    def synchronize(self) -> None:
        self._stream.passed_s = max(self._stream.passed_s, self.at_s)

    def elapsed_time(self, end_event: Event, /) -> float:
        assert self.query()
        assert end_event.query(), "both have to have passed"
        return 1000 * (end_event.at_s - self.at_s)


moves = st.lists(
    st.tuples(st.sampled_from(PARTS), st.integers(0, 1000).map(float), st.booleans()), max_size=1200
)


@given(moves)
def test_on_a_stream_each_part_gets_what_passes_in_it(moves: list[Move]) -> None:
    stream = Stream()
    parts = StepPhases(DevicePhaseTimeline(stream.event))
    expected = dict.fromkeys(PARTS, 0.0)
    for part, seconds, has_caught_up in moves:
        stream.now_s += 1.0
        expected["other"] += 1.0
        with parts.timed(part):
            stream.now_s += seconds
        expected[part] += seconds
        if has_caught_up:
            stream.passed_s = stream.now_s
    taken = parts.take()
    assert taken == pytest.approx([*expected.values()])
    assert sum(taken) == pytest.approx(stream.now_s)
    assert sum(parts.take()) == 0.0


def test_a_stream_that_keeps_up_needs_few_events() -> None:
    stream = Stream()
    parts = StepPhases(DevicePhaseTimeline(stream.event))
    for _ in range(10_000):
        with parts.timed("forward"):
            stream.now_s += 1.0
        stream.passed_s = stream.now_s
    assert stream.made < 1_000
    assert parts.take()[PARTS.index("forward")] == pytest.approx(10_000)


def test_a_part_inside_another_counts_for_itself_alone() -> None:
    stream = Stream()
    parts = StepPhases(DevicePhaseTimeline(stream.event))
    with parts.timed("compute"):
        stream.now_s += 1
        with parts.timed("forward"):
            stream.now_s += 2
        stream.now_s += 4
    stream.now_s += 8
    found = dict(zip(PARTS, parts.take(), strict=True))
    assert (found["compute"], found["forward"], found["other"]) == (5, 2, 8)


def test_a_block_that_fails_has_ended() -> None:
    stream = Stream()
    parts = StepPhases(DevicePhaseTimeline(stream.event))
    with pytest.raises(ValueError), parts.timed("forward"):
        raise ValueError
    stream.now_s += 3
    assert parts.take()[PARTS.index("other")] == 3


def test_a_part_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TrainingError, match=r"run\.timed\('foward'\).*data_wait.*forward"):
        StepPhases(HostPhaseTimeline()).timed("foward")  # type: ignore[arg-type]


def test_by_the_clock_of_the_process_all_that_has_passed_is_in_some_part() -> None:
    begun_s = time.perf_counter()
    parts = StepPhases(HostPhaseTimeline())
    began_s = time.perf_counter()
    with parts.timed("data_wait"):
        time.sleep(SLEEP_S)
    ended_s = time.perf_counter()
    found = dict(zip(PARTS, parts.take(), strict=True))
    assert found["data_wait"] >= SLEEP_S
    assert ended_s - began_s <= sum(found.values()) <= time.perf_counter() - begun_s


def waits(optimizer: torch.optim.Optimizer, parts: StepPhases) -> Callable[[], None]:
    """Hooks as a checkpointer has them, between a save and the next step; begins a save."""
    watch = SnapshotWaits(parts)
    watch.watch([optimizer, "no optimizer"])
    optimizer.register_step_pre_hook(lambda *_: time.sleep(SLEEP_S))
    return watch.expect


def test_what_a_step_waits_for_a_snapshot_is_no_time_of_the_optimizer() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    parts = StepPhases(HostPhaseTimeline())
    save = waits(optimizer, parts)

    def step() -> dict[str, float]:
        begun_s = time.perf_counter()
        parts.take()
        with parts.timed("optimizer"):
            optimizer.step()
        found: dict[str, float] = dict(zip(PARTS, parts.take(), strict=True))
        passed_s = time.perf_counter() - begun_s
        assert found["optimizer"] + found["checkpoint_stall"] <= passed_s, "none is counted twice"
        return found

    assert step()["checkpoint_stall"] == 0.0, "nothing was saved"
    for _ in range(2):
        save()
        found = step()
        assert found["checkpoint_stall"] >= SLEEP_S
        assert step()["checkpoint_stall"] == 0.0, "once a save"
    save()
    save()
    assert step()["checkpoint_stall"] >= SLEEP_S, "two saves without a step"
