"""Experts that cannot be, or cannot be shared, are refused by their key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.parallel_degrees import degrees, describe_layout
from hpckit.config.spec import ParallelSpec
from tests.unit.hpckit.specs_and_processes import make_spec, violations_of

FOUR = {"launch.nodes": 4}


def complaints(changes: dict[str, Any], model: str = "gpt_moe_nano") -> list[str]:
    return violations_of(changes, model=model)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {**FOUR, "parallel.expert": 3, "model.experts.count": 6},
            "parallel: shard 4 = 4 ranks, which share experts, cannot be divided by expert 3 "
            "(4 nodes x 1 worker)"
            "; change these degrees, launch.nodes or launch.nproc_per_node",
        ),
        (
            {**FOUR, "parallel.replicate": 2, "parallel.shard": 2, "parallel.expert": 8}
            | {"model.experts.count": 8},
            "parallel: replicate 2 x shard 2 = 4 ranks, which share experts, cannot be divided by "
            "expert 8 "
            "(4 nodes x 1 worker)"
            "; change these degrees, launch.nodes or launch.nproc_per_node",
        ),
        (
            {**FOUR, "parallel.expert": 4, "model.experts.count": 6},
            "parallel.expert: 4 ranks do not divide model.experts.count=6",
        ),
        (
            {"model.experts.top_k": 5},
            "model.experts.top_k: a token cannot go through 5 of model.experts.count=4",
        ),
        (
            {"model.experts.hidden": 12},
            "model.experts.hidden: experts need it to be a multiple of 8, got 12",
        ),
        (
            {"model.width": 36},
            "model.width: experts need it to be a multiple of 8, got 36",
        ),
        (
            {**FOUR, "parallel.shard": 2, "parallel.tensor": 2},
            "parallel.tensor: models with experts cannot be divided over 2 ranks this way; use "
            "parallel.expert, with a parallel group such as fsdp",
        ),
        (
            {**FOUR, "parallel.shard": 2, "parallel.pipeline": 2, "train.micro_batch": 4},
            "parallel.pipeline: models with experts cannot be divided over 2 ranks this way; use "
            "parallel.expert, with a parallel group such as fsdp",
        ),
        (
            {"memory.compile": True},
            "memory.compile: blocks with experts cannot be compiled, because the number of tokens "
            "of each expert is known only at run time; use false",
        ),
        (
            {**FOUR, "parallel.expert": 2, "memory.activation_checkpointing": "selective"},
            "memory.activation_checkpointing: selective is not supported with experts that ranks "
            "share (parallel.expert), because FSDP gathers them inside a block; use full",
        ),
        (
            {"cluster.device": "cuda", "memory.cpu_offload": True},
            "memory.cpu_offload: experts that ranks share (parallel.expert) must stay on the GPU; "
            "use false",
        ),
        (
            {"cluster.device": "cuda", "precision.compute": "fp8"},
            "precision.compute: experts cannot be computed in fp8; use bf16",
        ),
    ],
)
def test_what_is_said(changes: dict[str, Any], said: str) -> None:
    assert complaints(changes) == [said]


def test_ranks_cannot_share_experts_of_a_model_that_has_none() -> None:
    for model in ("gpt_nano", "llama_nano"):
        (said,) = complaints({**FOUR, "parallel.expert": 2}, model)
        assert said.startswith("parallel.expert: 2 ranks would share experts, but this model has")


@pytest.mark.parametrize(
    "changes",
    [
        {**FOUR, "parallel.expert": 4},
        {**FOUR, "parallel.replicate": -1, "parallel.shard": 1, "parallel.expert": 2},
        {**FOUR, "parallel.replicate": 2, "parallel.shard": 2, "parallel.expert": 4},
        {"memory.activation_checkpointing": "selective"},
        {"precision.compute": "bf16", "precision.master": "bf16"},
        {"model.experts.hidden": None, "model.experts.top_k": 4},
    ],
)
def test_what_works_is_let_through(changes: dict[str, Any]) -> None:
    assert complaints(changes) == []


def test_it_is_called_ep() -> None:
    spec = make_spec({**FOUR, "parallel.expert": 2}, model="gpt_moe_nano")
    assert describe_layout(spec.parallel, 4) == "ep 2, fsdp"


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 24))
def test_experts_are_on_all_ranks_of_data_or_it_is_refused(
    replicate: int, shard: int, expert: int
) -> None:
    parallel = ParallelSpec(replicate, shard, 1, 1, expert, "1f1b", 3, True)
    if replicate * shard % expert:
        with pytest.raises(ValueError, match=f"cannot be divided by expert {expert}"):
            degrees(parallel, replicate * shard)
        return
    found = degrees(parallel, replicate * shard)
    assert found.expert * found.expert_shard * found.expert_replicate == found.data
    if shard == 1:
        assert found.expert_shard == 1, "what is not sharded is not, once it is shared"
    if shard % expert == 0:
        assert found.expert_replicate == found.replicate, "a copy stays on its ranks"
