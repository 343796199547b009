"""Rules that span keys: what they let through works, what they refuse could not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.config.rules.violations import nodes_of_generation, violations
from tests.effort import times
from tests.unit.hpckit.specs_and_processes import make_spec, violations_of

CANARY = {"debug.canary.mode": "check", "debug.canary.file": "golden.json"}
SMALL = st.integers(1, 12)
WSD = {"optim.schedule": "wsd", "optim.decay_ratio": 0.1}


@pytest.mark.parametrize("cache", [{}, {"data.cache": "/local/me", "data.cache_gb": 0}])
def test_nodes_share_caches_only_if_there_are_some(cache: dict[str, Any]) -> None:
    (line,) = violations_of({"data.cache_peers": True, **cache})
    assert line.startswith("data.cache_peers: ")
    assert not violations_of({"data.cache_peers": True, "data.cache": "/local/me"})


@settings(max_examples=times(200), deadline=None)
@given(nodes=SMALL, gpus=SMALL, samples=st.integers(1, 400), micro=st.integers(1, 64), drill=SMALL)
def test_every_planned_world_splits_the_batch_evenly_or_is_refused(
    nodes: int, gpus: int, samples: int, micro: int, drill: int
) -> None:
    base = make_spec()
    spec = replace(
        base,
        launch=replace(base.launch, nodes=nodes, nproc_per_node=gpus),
        train=replace(base.train, global_batch=samples, micro_batch=micro),
        debug=replace(base.debug, drill=replace(base.debug.drill, nodes=(drill,))),
    )
    shares = [samples / (n * gpus) for n in (nodes, drill)]
    exact = all(share == int(share) for share in shares)
    equal = exact and all(share <= micro or share % micro == 0 for share in shares)
    assert bool(violations(spec)) is not equal


@pytest.mark.parametrize(
    ("samples", "nodes", "advice"), [(7, 2, "try 6 or 8"), (3, 4, "try 4"), (9, 4, "try 8 or 12")]
)
def test_a_batch_that_does_not_divide_is_told_one_that_does(
    samples: int, nodes: int, advice: str
) -> None:
    (line,) = violations_of(
        {"train.global_batch": samples, "launch.nodes": nodes, "train.micro_batch": 1}
    )
    assert line.startswith("train.global_batch: ")
    assert line.endswith(advice)
    assert f"{nodes} nodes" in line


def test_a_micro_batch_that_does_not_divide_a_share_is_refused() -> None:
    (line,) = violations_of({"train.global_batch": 16, "train.micro_batch": 6})
    assert line.startswith("train.micro_batch: 6 does not divide the 16 samples")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model.heads": 3}, "model.heads"),
        ({"model.vocab": 256}, "model.vocab"),
        ({"data.document_mask": False}, "data.document_mask"),
        ({"train.validate_every": 10}, "data.validation"),
        ({"data.validation": "/held/out"}, "data.validation"),
        ({"checkpoint.keep.best": "val_loss"}, "checkpoint.keep.best"),
        ({"train.steps": 100, "optim.warmup_steps": 100}, "optim.warmup_steps"),
        ({"optim.kind": "muon"}, "optim.momentum"),
        ({"optim.momentum": 0.9}, "optim.momentum"),
        ({"optim.schedule": "constant"}, "optim.min_lr_ratio"),
        ({"optim.min_lr_ratio": None}, "optim.min_lr_ratio"),
        ({"optim.schedule": "wsd"}, "optim.decay_ratio"),
        ({"optim.decay_ratio": 0.1}, "optim.decay_ratio"),
        ({**WSD, "train.steps": 100, "optim.warmup_steps": 91}, "optim.decay_ratio"),
        ({"optim.base_batch": 64}, "optim.scale"),
        ({"debug.overfit": True, "heal.on_spike": "rollback"}, "heal.on_spike"),
        ({"heal.on_spike": "skip", "heal.before": 0}, "heal.patience"),
        ({"heal.on_spike": "skip", "heal.patience": 1, "heal.before": 1}, "heal.before"),
        ({"debug.canary.mode": "check"}, "debug.canary.file"),
        ({"debug.canary.file": "golden.json"}, "debug.canary.file"),
        ({**CANARY, "train.steps": 200, "debug.canary.steps": 201}, "debug.canary.steps"),
        ({**CANARY, "debug.drill.preempt_at": [100]}, "debug.drill.preempt_at"),
        ({"train.steps": 200, "debug.profile.start": 199}, "debug.profile.start"),
        ({**CANARY, "debug.profile.start": 99}, "debug.profile.start"),
        ({"optim.scale": "sqrt"}, "optim.scale"),
        ({"checkpoint.every_minutes": 5.0}, "checkpoint.every_minutes"),
        ({"checkpoint.mtbf_hours": 5.0}, "checkpoint.mtbf_hours"),
        ({"debug.drill.preempt_at": [5, 5]}, "debug.drill.preempt_at"),
        ({"debug.drill.preempt_at": [7, 5]}, "debug.drill.preempt_at"),
        ({"train.steps": 200, "debug.drill.preempt_at": [200]}, "debug.drill.preempt_at"),
    ],
)
def test_what_cannot_work_together_is_refused_by_its_key(changes: dict[str, Any], key: str) -> None:
    (line,) = violations_of(changes)
    assert line.startswith(f"{key}: ")


@pytest.mark.parametrize("changes", [{}, {"entry": "mine.train:main"}])
@pytest.mark.parametrize("degree", ["parallel.pipeline", "parallel.expert"])
def test_gradients_cannot_be_compared_where_no_rank_computes_all(
    degree: str, changes: dict[str, Any]
) -> None:
    found = violations_of({"checkpoint.certify": "auto", degree: 2, "launch.nodes": 2, **changes})
    assert any(line.startswith(f"checkpoint.certify: must be null with {degree}") for line in found)


def test_all_that_an_optimizer_has_no_use_for_is_said_at_once() -> None:
    found = violations_of({"optim.momentum": 0.9, "optim.decay_ratio": 0.1, "optim.scale": "sqrt"})
    assert [line.split(":")[0] for line in found] == [
        "optim.momentum",
        "optim.decay_ratio",
        "optim.scale",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"train.steps": 101, "optim.warmup_steps": 100},
        {**WSD, "train.steps": 100, "optim.warmup_steps": 90},
        {"optim.kind": "muon", "optim.momentum": 0.9},
        {**CANARY, "debug.profile.start": 98, "debug.drill.preempt_at": [99]},
        {"optim.schedule": "constant", "optim.min_lr_ratio": None},
        {"optim.base_batch": 64, "optim.scale": "linear"},
        {"checkpoint.every_steps": None, "checkpoint.every_minutes": 5.0},
        {"checkpoint.every_steps": None},
        {"checkpoint.every_steps": None, "checkpoint.mtbf_hours": 3.0},
        {"checkpoint.url": "file:///ckpts"},
        {"checkpoint.url": "/ckpts"},
        {"checkpoint.url": "s3://bucket/ckpts"},
        {"checkpoint.url": "gs://bucket/ckpts"},
        {"train.steps": 200, "debug.drill.preempt_at": [1, 199]},
        {"train.steps": 1, "optim.warmup_steps": 0},
    ],
)
def test_what_works_is_let_through(changes: dict[str, Any]) -> None:
    assert violations_of(changes) == []


def test_without_a_drill_every_generation_has_the_nodes_of_the_job() -> None:
    spec = make_spec({"launch.nodes": 4})
    assert [nodes_of_generation(spec, n) for n in range(3)] == [4, 4, 4]


def test_the_last_entry_of_a_drill_holds_for_all_later_generations() -> None:
    spec = make_spec({"launch.nodes": 4, "debug.drill.nodes": [2, 1, 8]})
    assert [nodes_of_generation(spec, n) for n in range(5)] == [2, 1, 8, 8, 8]
