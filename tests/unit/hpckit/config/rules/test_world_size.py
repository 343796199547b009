"""What cannot be divided over ranks is refused, with the numbers and a way out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.config.batch_size import share_of_rank
from hpckit.config.parallel_degrees import degrees
from hpckit.config.rules.violations import fits
from hpckit.config.rules.world_size import world_size_violations
from hpckit.config.spec_parser import SpecError, parse_spec
from tests.unit.hpckit.specs_and_processes import make_spec, make_values

FOUR = {"launch.nproc_per_node": 4, "parallel.shard": 1}


@pytest.mark.parametrize(
    ("model", "changes", "said"),
    [
        (
            "gpt_nano",
            {"parallel.tensor": -1},
            ["parallel.tensor: 4 ranks do not divide model.heads=2; use a divisor"],
        ),
        (
            "llama_nano",
            {"parallel.tensor": -1, "model.hidden": 178, "model.seq_len": 62},
            [
                "parallel.tensor: 4 ranks do not divide model.seq_len=62; use a divisor",
                "parallel.tensor: 4 ranks do not divide model.kv_heads=2; use a divisor",
                "parallel.tensor: 4 ranks do not divide model.hidden=178; use a divisor",
            ],
        ),
        (
            "gpt_nano",
            {"parallel.pipeline": -1, "train.micro_batch": 4},
            [
                "parallel.pipeline: 4 ranks make 4 stages (1f1b), more than model.layers=2",
            ],
        ),
        (
            "gpt_nano",
            {
                "parallel.pipeline": 2,
                "parallel.shard": -1,
                "parallel.schedule": "interleaved",
                "train.micro_batch": 4,
            },
            [
                "parallel.pipeline: 2 ranks make 4 stages (interleaved), more than model.layers=2",
            ],
        ),
        (
            "gpt_nano",
            {"parallel.pipeline": 2, "parallel.shard": -1},
            [
                "train.micro_batch: 8 samples of a rank make 1 micro-batches of 16; "
                "a pipeline of 2 ranks (1f1b) needs 2: try 4"
            ],
        ),
        (
            "gpt_nano",
            {
                "parallel.pipeline": 2,
                "parallel.shard": -1,
                "parallel.schedule": "interleaved",
                "model.layers": 4,
                "train.global_batch": 10,
                "train.micro_batch": 1,
            },
            [
                "train.micro_batch: 5 micro-batches of 1 cannot be interleaved over a pipeline of "
                "2 ranks; try a multiple of 2 of them"
            ],
        ),
        (
            "gpt_nano",
            {"parallel.tensor": 2, "parallel.shard": -1, "train.global_batch": 7},
            [
                "train.global_batch: 7 samples cannot be divided evenly over 2 parts (1 node x 4 "
                "workers = "
                "4 ranks, 2 ranks share each part); try 6 or 8"
            ],
        ),
    ],
)
def test_what_is_said(model: str, changes: dict[str, object], said: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(make_values({**FOUR, **changes}, model=model))
    assert caught.value.violations == said


@settings(deadline=None)
@given(
    tensor=st.sampled_from([1, 2]),
    pipeline=st.sampled_from([1, 2]),
    nodes=st.integers(1, 6),
    batch=st.integers(1, 64),
    micro=st.integers(1, 8),
)
def test_what_fits_is_shared_without_a_rest(
    tensor: int, pipeline: int, nodes: int, batch: int, micro: int
) -> None:
    base = make_spec({**FOUR, "parallel.replicate": -1})
    spec = replace(
        base,
        parallel=replace(base.parallel, tensor=tensor, pipeline=pipeline),
        train=replace(base.train, global_batch=batch, micro_batch=micro),
    )
    if not fits(spec, nodes):
        assert list(world_size_violations(spec, nodes))
        return
    found = degrees(spec.parallel, nodes * 4)
    share = share_of_rank(spec, nodes * 4)
    assert share * found.data == batch
    assert share % min(micro, share) == 0
    assert pipeline == 1 or share // micro >= pipeline
