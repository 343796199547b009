"""Degrees of parallelism come out even, or are refused with the arithmetic."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.config.parallel_degrees import (
    NAMES,
    ParallelDegrees,
    blocks_of_stages,
    degrees,
    describe_layout,
    is_wrapped,
)
from hpckit.config.spec import ParallelSpec
from hpckit.config.spec_parser import SpecError, parse_spec
from hpckit.submit.compose import compose_spec
from tests.unit.hpckit.specs_and_processes import make_values

MICRO = "train.micro_batch=4"


def parallel(pipeline: int, replicate: int, shard: int, tensor: int) -> ParallelSpec:
    return ParallelSpec(replicate, shard, tensor, pipeline, 1, "1f1b", 3, True)


@settings(deadline=None)
@given(
    asked=st.tuples(*[st.sampled_from([-1, 1, 1, 2, 3, 4])] * 4),
    world=st.integers(1, 24),
)
def test_the_product_is_the_world_or_it_is_refused(asked: tuple[int, ...], world: int) -> None:
    divisors = [size for size in range(1, world + 1) if world % size == 0]
    can = [
        found
        for found in product(divisors, repeat=4)
        if prod(found) == world and all(a in (-1, f) for a, f in zip(asked, found, strict=True))
    ]
    if len(can) == 1 and asked.count(-1) < 2:
        assert degrees(parallel(*asked), world) == ParallelDegrees(
            **dict(zip(NAMES, can[0], strict=True)), expert=1
        )
        return
    with pytest.raises(ValueError, match=r"ranks|only one degree"):
        degrees(parallel(*asked), world)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"parallel.replicate": 3},
            "parallel: 2 ranks cannot be divided by replicate 3, so parallel.shard=-1 has no value"
            " (2 nodes x 1 worker)"
            "; change these degrees, launch.nodes or launch.nproc_per_node",
        ),
        (
            {"parallel.replicate": 3, "launch.nodes": 1},
            "parallel: 1 rank cannot be divided by replicate 3, so parallel.shard=-1 has no value"
            " (1 node x 1 worker)"
            "; change these degrees, launch.nodes or launch.nproc_per_node",
        ),
        (
            {"parallel.replicate": 2, "parallel.shard": 2},
            "parallel: replicate 2 x shard 2 = 4 ranks, but there are 2; -1 for one degree takes "
            "all remaining ranks"
            " (2 nodes x 1 worker)"
            "; change these degrees, launch.nodes or launch.nproc_per_node",
        ),
        (
            {"parallel.replicate": -1},
            "parallel: only one degree may be -1 (all remaining ranks); got replicate and shard"
            " (2 nodes x 1 worker)"
            "; change these degrees, launch.nodes or launch.nproc_per_node",
        ),
        (
            {"parallel.shard": 0},
            "parallel.shard: must be 1 or more, or -1 for all remaining ranks; got 0",
        ),
    ],
)
def test_what_does_not_come_out_even_is_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(make_values({"launch.nodes": 2, "launch.nproc_per_node": 1, **changes}))
    assert caught.value.violations == [says]


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("ddp", "ddp"),
        ("zero1", "zero1"),
        ("zero2", "zero2"),
        ("fsdp", "fsdp"),
        ("hsdp", "hsdp 2 x 4"),
        ("fsdp_tp", "tp 4, fsdp"),
        ("3d", "pp 2 (1f1b), tp 4"),
    ],
)
def test_each_option_is_what_it_is_called(option: str, name: str) -> None:
    spec = compose_spec(
        [
            *(f"parallel={option}", "launch.nodes=2", "launch.nproc_per_node=4"),
            *("train.global_batch=16", "train.micro_batch=2"),
        ]
    )
    assert describe_layout(spec.parallel, 8) == name


@given(st.integers(1, 200), st.integers(1, 40))
def test_blocks_are_divided_in_their_order_and_evenly(layers: int, stages: int) -> None:
    parts = blocks_of_stages(layers, stages)
    assert [block for part in parts for block in part] == list(range(layers))
    sizes = [len(part) for part in parts]
    assert len(sizes) == stages
    assert max(sizes) - min(sizes) <= 1
    assert sizes[0] == max(sizes)
    assert sizes[-1] == min(sizes)


@pytest.mark.parametrize(
    ("words", "nodes", "expected"),
    [
        ((), 1, False),
        ((), 2, True),
        (("parallel=pp",), 2, False),
        (("parallel=ddp", "parallel.pipeline=2", "launch.nodes=4", MICRO), 4, True),
        (("parallel=tp",), 2, True),
        (("precision=bf16",), 1, True),
        (("precision=bf16_pure",), 1, True),
        (("memory.cpu_offload=true", "memory.activation_checkpointing=none"), 1, True),
    ],
)
def test_who_has_each_layer_alone_in_fp32_has_no_use_for_fsdp(
    words: tuple[str, ...], nodes: int, expected: bool
) -> None:
    spec = compose_spec(["model=gpt_nano", "parallel=fsdp", "precision=fp32", *words])
    assert is_wrapped(spec, nodes) is expected
