"""Where the time went is what the records say, all of it once; and what is advised exists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.events.step_phases import NAMES, PARTS, Part
from hpckit.report.history import build_history
from hpckit.report.performance.bottleneck import PARTS as LOOPS
from hpckit.report.performance.bottleneck import (
    WELL,
    LimitingLoop,
    advice,
    bottleneck,
    describe_bottleneck,
)
from hpckit.report.performance.measured_step_time import MeasuredStepTime, step_time
from hpckit.report.performance.speed_report import speed_facts, speed_record
from hpckit.submit.compose import compose_spec
from tests.unit.hpckit.specs_and_processes import make_spec

GPU = {"tokens_per_s": 1000.0, "mfu": 0.4, "peak_memory_bytes": 3 * 2**30}


def record(step: int, generation: int = 1, /, **parts: float) -> Event:
    """Of a step whose parts these are."""
    seconds = {name: parts.pop(name, 0.0) for name in NAMES}
    about = {"generation": generation, "attempt": 0, "step": step, "step_s": sum(seconds.values())}
    return event_of(10.0 * generation + step, "step", {**about, **seconds, **parts})


def life(start: int, generation: int = 1, restore_s: float = 0.0) -> Event:
    about = {"generation": generation, "attempt": 0, "step": start, "world_size": 2}
    return event_of(
        10.0 * generation + start, "training_started", {**about, "restore_s": restore_s}
    )


def spent(
    seconds: Mapping[Part, float], exposed: float | None = None, gpu: bool = True
) -> MeasuredStepTime:
    total = sum(seconds.values())
    return MeasuredStepTime(10, total, dict(seconds), None, None, None, None, gpu, 3, exposed)


def test_each_record_counts_for_the_steps_that_it_tells_of() -> None:
    history = build_history(
        [
            life(0),
            record(10, forward_s=1.0, **GPU),
            record(20, forward_s=2.0, data_wait_s=1.0, **{**GPU, "mfu": 0.2}),
            record(25, forward_s=99.0),  # done again by the next life
            life(20, generation=2, restore_s=3.0),
            record(25, 2, forward_s=0.5, peak_memory_bytes=4 * 2**30),
        ]
    )
    it = step_time(history)
    assert it.steps == 25
    assert it.seconds == pytest.approx(10 * 1 + 10 * 3 + 5 * 0.5)
    assert it.parts["forward"] == pytest.approx(10 * 1 + 10 * 2 + 5 * 0.5)
    assert it.parts["data_wait"] == pytest.approx(10)
    assert it.mfu == pytest.approx((10 * 0.4 + 30 * 0.2) / 40)
    assert (it.peak_bytes, it.is_gpu, it.exposed) == (4 * 2**30, True, None)
    assert speed_record(history, None)["time"]["restore"] == 3.0


@given(st.lists(st.tuples(*[st.floats(0.0, 10.0) for _ in PARTS]), min_size=1, max_size=5))
def test_parts_add_up_to_the_time_in_steps(steps: list[tuple[float, ...]]) -> None:
    records = [
        record(10 * n, **dict(zip(NAMES, parts, strict=True))) for n, parts in enumerate(steps, 1)
    ]
    it = step_time(build_history([life(0), *records]))
    assert sum(it.parts.values()) == pytest.approx(it.seconds)
    assert it.steps == 10 * len(steps)


def test_traces_are_put_together_by_their_time() -> None:
    traced = [(1.0, 0.2), (3.0, 0.1)]
    records = [
        record(n, forward_s=1.0, traced_step_s=s, communication_s=s, communication_exposed_s=alone)
        for n, (s, alone) in enumerate(traced, 1)
    ]
    it = step_time(build_history([life(0), *records, record(3, forward_s=1.0)]))
    assert it.traced == 2
    assert it.exposed == pytest.approx(0.3 / 4)


def test_records_that_are_not_split_are_no_bottleneck() -> None:
    old = event_of(1.0, "step", {"generation": 1, "step": 4, "step_s": 0.5, "data_wait_s": 0.4})
    history = build_history([life(0), old])
    assert step_time(history).parts == {}
    facts = dict(speed_facts(history, None))
    assert [*facts] == ["time", "bottleneck"]
    assert facts["bottleneck"].startswith("unknown: the records of its steps are of a release")
    assert speed_record(build_history([]), None)["in_steps"]["steps"] == 0


@pytest.mark.parametrize("loop", [*WELL])
@pytest.mark.parametrize("by", [-0.01, 0.01])
def test_a_loop_is_to_blame_from_its_bound_on(loop: LimitingLoop, by: float) -> None:
    share = WELL[loop] + by
    for part in LOOPS[loop]:
        it = spent({part: share, "forward": 1 - share})
        assert bottleneck(it) is (loop if by > 0 else LimitingLoop.KERNEL)


def test_of_several_the_one_that_takes_most() -> None:
    seconds: dict[Part, float] = {"data_wait": 0.2, "checkpoint_stall": 0.3, "compute": 0.5}
    it = spent(seconds)
    assert bottleneck(it) is LimitingLoop.STORAGE
    assert describe_bottleneck(it, LimitingLoop.STORAGE).startswith("storage: 30% ")


def test_what_the_training_function_does_not_say_is_not_guessed() -> None:
    it = spent({"data_wait": 0.01, "other": 0.99})
    assert bottleneck(it) is None
    assert "run.timed" in describe_bottleneck(it, None)
    assert advice(it, None, None) == []
    assert bottleneck(spent({"data_wait": 0.5, "other": 0.5})) is LimitingLoop.INPUT


SLOW: dict[str, MeasuredStepTime] = {
    "data": spent({"data_wait": 1.0}),
    "saves": spent({"checkpoint_stall": 1.0, "forward": 1.0}),
    "validation": spent({"validation": 1.0, "forward": 1.0}),
    "optimizer": spent({"optimizer": 1.0, "forward": 1.0}),
    "host": spent({"other": 1.0, "forward": 1.0}),
    "passes": spent({"forward": 1.0}),
    "collectives": spent({"forward": 1.0}, exposed=0.5),
}
COMMANDS = r"hpckit data (warm|bench)"
KEY = r"[a-z]+(?:\.[a-z_]+)?=[a-z0-9]+|(?:data|train|checkpoint|parallel|precision)\.[a-z_]+"


@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("spec", [None, make_spec(), make_spec({"checkpoint.staging": "buckets"})])
def test_what_is_advised_exists(name: str, spec: Any) -> None:
    lines = advice(SLOW[name], bottleneck(SLOW[name]), spec)
    assert lines
    for key in re.findall(KEY, "\n".join(lines)):
        if "=" in key:
            compose_spec(["launch.nodes=8", "train.global_batch=64", "train.micro_batch=1", key])
        else:
            group, field = key.split(".")
            assert hasattr(getattr(make_spec(), group), field)


def test_nothing_is_advised_that_is_so_already() -> None:
    collectives = SLOW["collectives"]
    assert any("zero2" in line for line in advice(collectives, LimitingLoop.KERNEL, make_spec()))
    ddp = make_spec({"parallel.zero": 1})
    assert not any("zero2" in line for line in advice(collectives, LimitingLoop.KERNEL, ddp))
    bf16 = make_spec({"precision.compute": "bf16"})
    assert not any("bf16" in line for line in advice(collectives, LimitingLoop.KERNEL, bf16))
    assert any("bf16" in line for line in advice(collectives, LimitingLoop.KERNEL, make_spec()))


def test_the_lines_of_a_run() -> None:
    slow = {"rank": 3, "host": "n7", "step": 8, "z": 9.0, "excess": 0.4, "generation": 1}
    traced = {"traced_step_s": 1.0, "communication_s": 0.3, "communication_exposed_s": 0.15}
    history = build_history(
        [
            life(0),
            record(10, forward_s=0.5, backward_s=0.4, data_wait_s=0.1, **GPU, **traced),
            event_of(40.0, "straggler", slow),
        ]
    )
    told = dict(speed_facts(history, make_spec()))
    assert told["time"] == (
        "30 s in total: 10 s in kept steps, 0 s before the first step, "
        "0.0 s lost to 0 interruptions, 20 s for everything else"
    )
    assert told["step time"] == "1.000 s: forward 50%, backward 40%, data wait 10%"
    assert told["collectives"] == (
        "15% of the step time is exposed communication, within the parts above (1 step traced)"
    )
    assert told["speed"] == "1,000 tok/s, MFU 40.0%, peak GPU memory 3.0 GiB"
    assert told["straggler"] == (
        "rank 3 on n7 takes 40% longer than ranks with the same work, from step 8 on"
    )
    assert told["bottleneck"] == "input: 10% of the step time is spent waiting for data"
    assert "hpckit data bench" in told["suggestion"]


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        ("torch.utils.data.dataloader.DataLoader", "DataLoader: increase num_workers"),
        ("grain._src.python.data_loader.DataLoader", "grain.MultiprocessingOptions"),
        ("streaming.base.dataloader.StreamingDataLoader", "predownload"),
        ("mine.batches.Batches", "Batches: have it read ahead"),
    ],
)
def test_a_loader_of_another_library_gets_advice_that_it_can_follow(loader: str, said: str) -> None:
    waits = replace(SLOW["data"], loader=loader)
    text = "\n".join(advice(waits, bottleneck(waits), make_spec()))
    assert said in text
    assert "data.threads" not in text
    assert "hpckit data" not in text


def test_the_loader_is_that_of_the_newest_start() -> None:
    begun = event_of(1.0, "training_started", {"generation": 1, "step": 0, "world_size": 1})
    assert step_time(build_history([begun])).loader is None
    fields = {"generation": 2, "step": 0, "world_size": 1, "loader": "torch.DataLoader"}
    again = event_of(2.0, "training_started", fields)
    assert step_time(build_history([begun, again])).loader == "torch.DataLoader"
