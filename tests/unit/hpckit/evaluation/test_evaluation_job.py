"""What a function that evaluates may return, and how long it may take."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpckit.evaluation.evaluation_job import (
    EvaluationError,
    EvaluationRequest,
    checked_metrics,
    ids_of_task,
    worker_environment,
    worker_limit_s,
)
from hpckit.rundir.directory import RunDir
from tests.unit.hpckit.specs_and_processes import make_spec

SPEC = make_spec({"eval.entry": "mine:evaluate", "eval.metric": "accuracy"}).eval


def test_metrics_get_the_prefix() -> None:
    found = checked_metrics({"accuracy": 1, "hellaswag/acc": 0.25}, SPEC)
    assert found == {"eval_accuracy": 1.0, "eval_hellaswag/acc": 0.25}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (None, "must return a mapping"),
        ({}, "must return a mapping"),
        ("0.5", "must return a mapping"),
        ({"accuracy": math.nan}, "accuracy=nan, which is not a finite number"),
        ({"accuracy": -math.inf}, "accuracy=-inf, which is not a finite number"),
        ({"accuracy": 10**400}, "which is not a finite number"),
        ({"accuracy": "high"}, "accuracy='high', which is not a finite number"),
        ({"accuracy": True}, "not a finite number"),
        ({"loss": 1.0}, r"no accuracy \(eval.metric\), but loss"),
        ({"accuracy": 1.0, "a b": 1.0}, "a metric named 'a b'"),
    ],
)
def test_what_is_no_metric_is_said(found: Any, problem: str) -> None:
    with pytest.raises(EvaluationError, match=problem):
        checked_metrics(found, SPEC)


def test_code_that_is_given_comes_before_that_of_the_working_directory(tmp_path: Path) -> None:
    request = EvaluationRequest(RunDir(tmp_path), 1, make_spec({}), "10-89abcdef")
    assert "PYTHONSAFEPATH" not in worker_environment(request, {"PYTHONPATH": "/old"})
    given = replace(request, code=(Path("/own"), Path("/copy")))
    found = worker_environment(given, {"PYTHONPATH": "/old"})
    assert (found["PYTHONPATH"], found["PYTHONSAFEPATH"]) == ("/own:/copy:/old", "1")


def test_an_evaluation_ends_before_its_job_does() -> None:
    assert worker_limit_s("01:00:00") == 3570.0
    assert worker_limit_s("00:00:10") == 9.0


def test_a_task_of_an_array_evaluates_its_own_checkpoint() -> None:
    assert ids_of_task(["a", "b"], {"SLURM_ARRAY_TASK_ID": "1"}) == ["b"]
    assert ids_of_task(["a", "b"], {}) == ["a", "b"]
    assert ids_of_task(["a"], {"SLURM_ARRAY_TASK_ID": "3"}) == ["a"]  # of another array
