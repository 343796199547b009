"""What a config needs of the torch that is installed."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.submit.preflight.torch_version import torch_problems
from tests.unit.hpckit.specs_and_processes import make_spec

COMPILED = {"memory.compile": True, "memory.activation_checkpointing": "selective"}
EXPERTS = {"model.experts": {"count": 4, "top_k": 2, "hidden": None, "balance_rate": 0.001}}
VARLEN = {"memory.attention": "varlen", "data.text": "tokens", "precision.compute": "bf16"}
STAGES = {"parallel.pipeline": 2, "launch.nproc_per_node": 2, "train.micro_batch": 4}


@pytest.mark.parametrize(
    ("changes", "installed", "says"),
    [
        ({}, "2.9.1+cu128", None),
        ({}, "2.13.0+cpu", None),
        ({}, "2.15.0a0+git1234", None),
        ({}, "main", None),
        ({}, "2.7.1", None),
        ({}, "2.6.0", "torch 2.6.0 is installed, and hpckit needs 2.7 or newer"),
        (EXPERTS, "2.9.1", None),
        (EXPERTS, "2.8.0", "model.experts: needs torch 2.9, not 2.8.0"),
        (
            VARLEN | {"cluster.device": "cuda"},
            "2.11.0",
            "memory.attention=varlen: needs torch 2.12",
        ),
        (VARLEN | {"cluster.device": "cpu"}, "2.11.0", None),
        (COMPILED, "2.13.0", None),
        ({"memory.compile": True}, "2.9.1", None),
        (
            STAGES,
            "2.9.1",
            "parallel.pipeline: needs torch 2.13, not 2.9.1",
        ),
        (STAGES, "2.13.1", None),
        (
            COMPILED,
            "2.9.1",
            "memory.compile=true with memory.activation_checkpointing=selective: "
            "needs torch 2.13, not 2.9.1",
        ),
    ],
)
def test_an_older_torch_is_named_with_what_it_lacks(
    changes: dict[str, Any], installed: str, says: str | None
) -> None:
    found = torch_problems(make_spec(changes), installed)
    assert len(found) == (says is not None)
    assert all(one.startswith(str(says)) for one in found)


def test_the_torch_of_the_tests_runs_everything() -> None:
    assert torch_problems(make_spec()) == []
