"""What a fork may change, and what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord, read_fork, write_fork
from hpckit.submit.fork.fork_request import ForkRequest, fork_lines, fork_problems
from tests.unit.hpckit.specs_and_processes import make_spec

STORE = "/runs/gpt-1/checkpoints"


def fork(changes: dict[str, Any], step: int = 50, **before: Any) -> ForkRequest:
    base = {"train.steps": 100, "optim.warmup_steps": 5, **before}
    spec = make_spec({**base, "checkpoint.url": STORE, **changes})
    return ForkRequest(RunDir(Path("/runs/gpt-1")), make_spec(base), spec, step)


@pytest.mark.parametrize(
    "changes",
    [
        {"optim.lr": 1e-5},
        {"train.steps": 300, "train.global_batch": 8},
        {"launch.nodes": 2, "name": "other"},
        {"precision.compute": "bf16"},
        {"optim.weight_decay": 0.5, "data.threads": 7},
    ],
)
def test_how_it_trains_may_change(changes: dict[str, Any]) -> None:
    assert fork_problems(fork(changes)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.width": 256}, "model.width: cannot change from"),
        ({"data.shards": "/other"}, "data.shards: cannot change from"),
        ({"train.seed": 7}, "the order of the samples depends on it"),
        ({"data.window": 3}, "the order of the samples depends on it"),
        ({"precision.compute": "fp16"}, "a checkpoint with fp16 has a loss scale"),
        ({"optim.lr": 1e-5, "train.steps": 50}, "50 steps are done at step 50"),
        ({"optim.lr": 1e-5, "checkpoint.url": "/elsewhere"}, f"must stay {STORE}"),
        ({}, "nothing differs from gpt-1"),
        ({"launch.nodes": 2}, "nothing differs from gpt-1"),
    ],
)
def test_what_the_state_was_made_for_may_not(changes: dict[str, Any], words: str) -> None:
    problems = fork_problems(fork(changes))
    assert any(words in line for line in problems), problems


def test_people_read_what_is_kept_and_what_changes() -> None:
    text = "\n".join(fork_lines(fork({"optim.lr": 1e-5, "train.steps": 300})))
    for words in (
        "kept: all of the state at step 50",
        "nothing is copied",
        "changed: train.steps: 100 -> 300",
        "is that of 300 steps from now on",
        "code: that of the project here",
    ):
        assert words in text


def test_a_record_that_is_damaged_is_none(tmp_path: Path) -> None:
    run, record = RunDir(tmp_path / "run"), ForkRecord("gpt-1", "/runs/gpt-1", STORE, 50, "50-a")
    assert read_fork(run) is None
    write_fork(run, record)
    assert read_fork(run) == record
    run.fork.write_text('{"run": "x", "more": 1}')
    assert read_fork(run) is None
