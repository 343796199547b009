"""Number formats and memory levers that cannot work are refused by their key, all at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.hpckit.specs_and_processes import violations_of

GPU: dict[str, Any] = {"cluster.device": "cuda"}
OFFLOAD = {**GPU, "memory.cpu_offload": True}
MUON = {"optim.kind": "muon", "optim.momentum": 0.95}
FP8 = {**GPU, "precision.compute": "fp8"}


def complaints(changes: dict[str, Any]) -> list[str]:
    return [line.split(":")[0] for line in violations_of(changes)]


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"precision.master": "bf16"}, ["precision.master"]),
        ({"precision.master": "bf16", "precision.compute": "fp16"}, ["precision.master"]),
        ({"precision.compute": "fp8"}, ["precision.compute"]),
        ({**FP8, "model.width": 40}, ["model.width"]),
        ({**FP8, "model.seq_len": 40}, ["model.seq_len"]),
        (
            {**FP8, "launch.nproc_per_node": 2, "parallel.tensor": 2, "parallel.shard": 1},
            ["precision.compute"],
        ),
        ({"memory.cpu_offload": True}, ["memory.cpu_offload"]),
        (
            {**OFFLOAD, "launch.nodes": 2, "parallel.replicate": -1, "parallel.shard": 1},
            ["memory.cpu_offload"],
        ),
        (
            {
                **OFFLOAD,
                "launch.nodes": 2,
                "parallel.pipeline": 2,
                "parallel.shard": 1,
                "train.micro_batch": 4,
            },
            ["memory.cpu_offload"],
        ),
        ({**OFFLOAD, **MUON, "launch.nodes": 2}, ["memory.cpu_offload"]),
        ({"memory.attention": "efficient"}, ["memory.attention"]),
        ({"memory.attention": "cudnn"}, ["memory.attention"]),
        ({**GPU, "data.text": "tokens", "memory.attention": "flash"}, ["memory.attention"]),
        ({"memory.loss_chunks": 65}, ["memory.loss_chunks"]),
        (
            {
                "precision.compute": "fp8",
                "model.width": 40,
                "memory.cpu_offload": True,
                "memory.attention": "cudnn",
                "memory.loss_chunks": 99,
            },
            [
                "precision.compute",
                "model.width",
                "memory.cpu_offload",
                "memory.attention",
                "memory.loss_chunks",
            ],
        ),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], keys: list[str]) -> None:
    assert complaints(changes) == keys


@pytest.mark.parametrize(
    "changes",
    [
        FP8,
        {**FP8, "precision.master": "bf16"},
        OFFLOAD,
        {**OFFLOAD, "launch.nodes": 4, "parallel.replicate": 2, "parallel.shard": 2},
        {**OFFLOAD, "parallel.replicate": -1, "parallel.shard": 1},  # one rank has no replica
        {**GPU, "memory.attention": "cudnn"},
        {**GPU, "memory.attention": "flash"},
        {"data.text": "tokens", "memory.attention": "flash"},
        {**GPU, "data.text": "tokens", "data.document_mask": False, "memory.attention": "flash"},
        {"memory.attention": "math", "memory.loss_chunks": 64},
        {"precision.compute": "fp16", "precision.reduce": "bf16"},
        {"precision.compute": "bf16", "precision.master": "bf16"},
    ],
)
def test_what_works_is_let_through(changes: dict[str, Any]) -> None:
    assert complaints(changes) == []
