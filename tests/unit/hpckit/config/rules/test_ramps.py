"""Ramps of the batch and of sequences: what cannot be is refused with the key to change, and the
learning rate follows the unit that is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpckit.config.batch_size import (
    batch_ramp,
    present_steps,
    samples_before,
    schedule_length,
    schedule_point,
    sequence_length,
)
from hpckit.config.learning_rate import lr_factor
from hpckit.config.names_of_other_tools import key_for
from hpckit.config.rules.ramps import ramp_notes
from hpckit.config.rules.violations import violations
from hpckit.config.spec_parser import SpecError
from tests.unit.hpckit.specs_and_processes import make_spec

BATCH = {"start": 4, "increment": 4, "samples": 100}
LENGTH = {"start": 16, "samples": 100}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": 16}, "train.batch_ramp: a ramp needs"),
        ({"increment": 5}, "train.batch_ramp: increments of 5 do not lead from 4 to 16"),
        ({"start": 1, "increment": 5}, "train.batch_ramp.start: 1 samples cannot be divided"),
        ({"start": 10, "increment": 3}, "train.batch_ramp.increment: 3 samples cannot be divided"),
    ],
)
def test_batches_that_cannot_be_shared_are_refused(changes: dict[str, int], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make_spec({"train.batch_ramp": {**BATCH, **changes}, "launch.nproc_per_node": 2})


def test_each_size_has_to_divide_on_the_fewest_nodes_of_an_elastic_run() -> None:
    base = {
        "train.batch_ramp": {"start": 8, "increment": 4, "samples": 100},
        "launch.nodes": 4,
        "launch.nproc_per_node": 1,
    }
    assert make_spec(base)
    with pytest.raises(SpecError, match=r"train.global_batch: 16 .* 3 ranks"):
        make_spec({**base, "elastic.min_nodes": 3})
    of_six = {
        **base,
        "train.global_batch": 24,
        "train.micro_batch": 2,
        "train.batch_ramp": {"start": 4, "increment": 4, "samples": 100},
    }
    with pytest.raises(SpecError, match=r"train.batch_ramp.start: 4 .* 3 parts"):
        make_spec({**of_six, "elastic.min_nodes": 3})


def test_micro_batches_have_to_divide_each_size() -> None:
    with pytest.raises(SpecError, match=r"train.micro_batch: 8 does not divide the 12 samples"):
        make_spec(
            {
                "train.batch_ramp": BATCH,
                "train.micro_batch": 8,
                "launch.nproc_per_node": 1,
            }
        )


def test_a_ramp_that_the_run_ends_within_is_said() -> None:
    values = {"train.batch_ramp": BATCH, "train.sequence_ramp": {"start": 16, "samples": 400}}
    spec = make_spec({**values, "train.steps": 20, "optim.warmup_steps": 1})
    ramp = batch_ramp(spec, 1)
    assert ramp is not None
    seen = [ramp.after(0, steps) for steps in range(1000)]
    whole = next(n for n, samples in enumerate(seen) if ramp.size_at(samples) == ramp.size)
    for steps, told in ((whole, 1), (whole + 1, 0)):
        own = {"train.batch_ramp": BATCH, "train.steps": steps, "optim.warmup_steps": 1}
        found = make_spec(own)
        assert len(list(ramp_notes(found))) == told
    short = {**values, "train.steps": 2, "optim.warmup_steps": 1}
    of_batch, of_sequences = ramp_notes(make_spec(short))
    assert of_batch.startswith(f"train.batch_ramp: grows over {BATCH['samples']} samples, and 2 ")
    assert of_sequences.endswith("sequences end at 16 of model.seq_len=64 tokens")
    assert list(ramp_notes(make_spec())) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": 64}, "train.sequence_ramp: a start of 64 tokens is not below"),
        ({"start": 10}, "doubling 10 tokens never gives model.seq_len=64"),
        ({"increment": 20}, "increments of 20 tokens do not lead from 16"),
        ({"increment": 16}, "cannot be split into sequences of 48 tokens"),
    ],
)
def test_lengths_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make_spec({"train.sequence_ramp": {**LENGTH, **changes}})


def test_sequences_grow_on_no_pipeline_and_for_no_images() -> None:
    with pytest.raises(SpecError, match=r"parallel\.pipeline=1"):
        make_spec(
            {
                "train.sequence_ramp": LENGTH,
                "parallel.pipeline": 2,
                "parallel.shard": 1,
                "train.micro_batch": 4,
                "launch.nproc_per_node": 2,
            }
        )
    with pytest.raises(SpecError, match="hpckit's own language models"):
        make_spec({"train.sequence_ramp": LENGTH}, model="resnet_nano")


def test_lengths_double_or_grow_by_the_samples_seen() -> None:
    doubling = make_spec({"train.sequence_ramp": LENGTH})
    assert [sequence_length(doubling, seen) for seen in (0, 49, 50, 99, 100, 10**9)] == [
        *(16, 16, 32, 32),
        *(64, 64),
    ]
    growing = make_spec({"train.sequence_ramp": {**LENGTH, "increment": 16, "method": "truncate"}})
    assert [sequence_length(growing, seen) for seen in (0, 34, 67, 100)] == [16, 32, 48, 64]
    assert sequence_length(make_spec(), 0) == 64


def test_samples_of_steps_are_those_of_the_ramp() -> None:
    spec = make_spec({"train.batch_ramp": BATCH})
    sizes = [samples_before(spec, n + 1) - samples_before(spec, n) for n in range(20)]
    assert sizes[:9] == [4] * 9, "a third of the 100 samples"
    assert sizes[9:13] == [8] * 4
    assert sizes[-1] == 16
    assert present_steps(spec, 0, 9) == 9
    assert present_steps(spec, 8, 10) == 3, "the step of 8 samples takes as long as two"
    assert present_steps(make_spec(), 8, 10) == 2


def test_a_world_with_a_batch_of_its_own_has_a_ramp_of_its_own() -> None:
    spec = make_spec({"train.batch_ramp": BATCH, "launch.nodes": 2, "launch.nproc_per_node": 2})
    spec = replace(spec, elastic=replace(spec.elastic, scale_lr="linear"))
    half = batch_ramp(spec, 2)
    assert half is not None
    assert (half.start, half.increment, half.samples, half.size) == (2, 2, 100, 8)


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_the_learning_rate_follows_what_was_seen(unit: str) -> None:
    changes = {"train.batch_ramp": BATCH, "train.steps": 100, "optim.warmup_steps": 2}
    spec = make_spec({**changes, "optim.schedule_unit": unit})
    assert schedule_length(spec) == samples_before(spec, 100) / 16 < 100
    for step in (0, 7, 30, 99):
        point = schedule_point(spec, 1, step, samples_before(spec, step))
        assert point.at == samples_before(spec, step) / 16
        assert point.total == schedule_length(spec), "the same at every step"
    last = schedule_point(spec, 1, 99, samples_before(spec, 99))
    assert lr_factor(last.at, spec.optim, last.total) == pytest.approx(0.1)
    by_step = make_spec(changes)
    assert schedule_point(by_step, 1, 7, 28) == (7, 100)


def test_truncated_sequences_count_for_their_tokens() -> None:
    ramp = {**LENGTH, "method": "truncate"}
    spec = make_spec(
        {"train.sequence_ramp": ramp, "optim.schedule_unit": "tokens", "train.steps": 1000}
    )
    at = [schedule_point(spec, 1, 0, seen).at * 16 * 64 for seen in (10, 60, 100, 200)]
    assert at == [160, 50 * 16 + 320, 50 * 16 + 50 * 32, 50 * 48 + 6400]


def test_the_warm_up_has_to_end_before_the_steps_do() -> None:
    with pytest.raises(SpecError, match=r"optim.warmup_steps: 30 .* samples of .* full steps"):
        make_spec(
            {
                "train.batch_ramp": {**BATCH, "samples": 10000},
                "train.steps": 100,
                "optim.warmup_steps": 30,
                "optim.schedule_unit": "samples",
            }
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.batch_ramp", BATCH),
        ("train.sequence_ramp", {"start": 8, "samples": 100}),
        ("optim.schedule_unit", "samples"),
    ],
)
def test_what_samples_decide_and_a_single_batch_are_refused(key: str, value: object) -> None:
    with pytest.raises(SpecError, match=rf"{key}: must be \w+ with debug\.overfit"):
        make_spec({key: value, "debug.overfit": True})


def test_the_names_of_other_tools_lead_here() -> None:
    assert "train.batch_ramp" in (key_for("rampup-batch-size") or "")
    assert "train.sequence_ramp" in (key_for("seq_length_warmup") or "")


def test_specs_without_ramps_have_no_violations() -> None:
    assert violations(make_spec()) == []
