"""Which steps are a spike, which checkpoints saw its samples, and when it was too often."""

from __future__ import annotations

import json
import math

from data.order.skipped_ranges import SkippedRanges
from hpckit.events.schema import event_of
from hpckit.trainer.spikes.rollback_plan import (
    Rollback,
    Spike,
    SpikeSteps,
    is_one_too_many,
    left_behind,
    rollbacks,
    trained_on,
)
from hpckit.trainer.spikes.spike_detection import Outlier

HIGH = (Outlier("loss", 9.0, 2.0),)
NAN = (Outlier("loss", math.nan, math.nan),)


def found(patience: int, before: int, steps: str) -> Spike | None:
    """The first spike in steps of 4 samples: `.` has no outlier, `x` has one, `n` is NaN."""
    watch = SpikeSteps(patience, before)
    for step, kind in enumerate(steps, 1):
        outliers = {".": (), "x": HIGH, "n": NAN}[kind]
        if spike := watch.update(step, (4 * step - 4, 4 * step), outliers):
            return spike
    return None


def test_as_many_in_a_row_as_it_needs() -> None:
    assert found(3, 0, "..xx.xx.x") is None
    assert found(3, 0, "..xx.xxx") == Spike(6, 8, 20, 32, HIGH)
    assert found(1, 0, "..x") == Spike(3, 3, 8, 12, HIGH)


def test_nan_needs_no_second_one() -> None:
    assert found(3, 0, "....n") == Spike(5, 5, 16, 20, NAN)
    assert found(3, 0, "...xn") == Spike(4, 5, 12, 20, NAN)


def test_steps_before_it_are_left_out_too_as_far_as_they_are_known() -> None:
    assert found(2, 3, "......xx") == Spike(4, 8, 12, 32, HIGH)
    assert found(2, 3, ".xx") == Spike(1, 3, 0, 12, HIGH)


def test_steps_in_a_row_are_counted_over_a_restart() -> None:
    first = SpikeSteps(3, 1)
    for step in range(1, 6):
        assert first.update(step, (4 * step - 4, 4 * step), HIGH if step > 3 else ()) is None
    resumed = SpikeSteps(3, 1)
    resumed.load(json.loads(json.dumps(first.saved)))
    assert resumed.update(6, (20, 24), HIGH) == Spike(3, 6, 8, 24, HIGH)
    less_patient = SpikeSteps(1, 0)
    less_patient.load(first.saved)
    assert less_patient.update(6, (20, 24), HIGH) == Spike(6, 6, 20, 24, HIGH)


def test_rollbacks_are_the_spikes_that_were_left_out() -> None:
    fields = {"first_step": 3, "what": "", "first_position": 8, "end_position": 12}
    events = [
        event_of(0.0, "spike", {**fields, "step": 3, "is_left_out": True}),
        event_of(1.0, "step", {"step": 3}),
        event_of(2.0, "spike", {**fields, "step": 9, "is_left_out": False}),
    ]
    assert rollbacks(events) == [Rollback(3, 8, 12)]


def test_a_rollback_has_the_step_from_which_the_run_continues() -> None:
    spike = {"first_step": 3, "what": "", "first_position": 8, "is_left_out": True}
    begin = {"generation": 1, "world_size": 1, "samples": 9}
    events = [
        event_of(0.0, "training_started", {**begin, "step": 0}),
        event_of(1.0, "spike", {**spike, "step": 3, "end_position": 12}),
        event_of(2.0, "training_started", {**begin, "step": 2}),
        event_of(3.0, "training_started", {**begin, "step": 4}),
        event_of(4.0, "spike", {**spike, "step": 6, "end_position": 16}),
    ]
    assert rollbacks(events) == [Rollback(3, 8, 12, 2), Rollback(6, 8, 16, -1)]


def test_a_state_between_the_end_and_the_begin_of_a_rollback_is_left_behind() -> None:
    made = [Rollback(30, 0, 1, 20), Rollback(50, 2, 3, 40), Rollback(60, 4, 5)]
    assert left_behind(made, 25, known=0) == made[0]
    assert left_behind(made, 20, known=0) is None
    assert left_behind(made, 25, known=1) is None
    assert left_behind(made, 45, known=1) == made[1]
    assert left_behind(made, 55, known=2) is None, "the last one goes back now"
    assert left_behind(made, 45, known=5) is None, "of a fork, which has rollbacks of its own"


def test_the_limit_counts_steps_near_this_one() -> None:
    made = [Rollback(100, 0, 1), Rollback(190, 2, 3), Rollback(1500, 4, 5)]
    assert is_one_too_many(made, 200, most=2, within=1000)
    assert not is_one_too_many(made, 200, most=3, within=1000)
    assert not is_one_too_many(made, 1195, most=2, within=1000)


def test_a_state_that_saw_the_samples_is_known_by_its_loader() -> None:
    made, nothing = [Rollback(5, 16, 24), Rollback(9, 40, 44)], SkippedRanges()
    assert trained_on(made, 16, nothing) is None
    assert trained_on(made, 20, nothing) == made[0]
    assert trained_on(made, 60, SkippedRanges([(16, 24)])) == made[1]
    assert trained_on(made, 60, SkippedRanges([(12, 44)])) is None
    assert trained_on(made, 42, SkippedRanges([(16, 24), (40, 42)])) is None
