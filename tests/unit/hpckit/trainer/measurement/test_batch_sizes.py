"""The search for the best batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hpckit.submit.compose import compose_spec
from hpckit.trainer.measurement.batch_size_figures import (
    BatchTiming,
    best_batch,
    should_double,
)
from hpckit.trainer.measurement.batch_size_timing import in_precision, time_precision
from hpckit.trainer.parallel.device_mesh import make_mesh


def timings(*seconds: float | None) -> list[BatchTiming]:
    return [BatchTiming("fp32", 2**n, each, None) for n, each in enumerate(seconds)]


@pytest.mark.parametrize(
    ("seconds", "goes_on"),
    [
        ((1.0,), True),
        ((1.0, 1.9), True),
        ((1.0, 1.5, 2.0), True),
        ((1.0, 2.0, 4.0), False),  # twice as many are not faster
        ((1.0, 1.5, None), False),  # out of memory
        ((1.0, 6.0, 11.0), False),  # too long
    ],
)
def test_it_goes_on_while_more_samples_are_faster(
    seconds: tuple[float | None, ...], goes_on: bool
) -> None:
    assert should_double(timings(*seconds), 1024, 10.0) is goes_on
    assert not should_double(timings(*seconds), 2 ** (len(seconds) - 1), 10.0)


def test_the_smallest_of_those_that_are_nearly_fastest_is_best() -> None:
    best = best_batch(timings(1.0, 1.0, 1.01, 2.0, None))
    assert best is not None
    assert best.samples == 4
    assert best_batch(timings(None)) is None


@pytest.mark.parametrize("words", [["model=gpt_nano"], ["model=resnet_nano", "data=images"]])
def test_a_model_is_timed_with_growing_batches(words: list[str], tmp_path: Path) -> None:
    if "data=images" in words:
        words = [*words, "data.shards=.", "entry=hpckit.training.images:main"]
    spec = compose_spec(words)
    dist.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = make_mesh("cpu", spec.parallel)
        found = list(time_precision(spec, "fp32", mesh, torch.device("cpu"), 2, 10.0))
    finally:
        dist.destroy_process_group()
    assert [one.samples for one in found] == [1, 2]
    assert all(one.step_s is not None and one.samples_per_s > 0 for one in found)


def test_a_precision_is_that_of_its_option() -> None:
    spec = compose_spec(["model=gpt_nano"])
    for name in ("fp32", "fp16", "bf16"):
        assert in_precision(spec, name) == compose_spec(["model=gpt_nano", f"precision={name}"])
