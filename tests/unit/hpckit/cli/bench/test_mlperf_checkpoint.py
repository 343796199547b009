"""What `hpckit bench mlperf-checkpoint` plans, and refuses before it starts anything."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--scale 7b --store x", "--scale: '7b' is not one of 8b, 70b, 405b, 1t"),
        ("--scale 8b", "--store: give the store to measure, or --plan"),
        ("--store s3:/b/x", "--store: s3:/b/x is neither a path nor a URL; did you mean s3://b/x"),
        ("--store file:///tmp", "--store: /tmp exists already; name a folder that does not"),
        ("--store x --store-gbps 3", "--store-gbps: is only for --plan"),
        ("--plan --store x", "--plan: measures nothing, so leave out --store"),
        ("--plan --fraction 1", "--plan: measures nothing, so leave out --fraction"),
        ("--plan --times 3 --store x", "--plan: measures nothing, so leave out --store, --times"),
        ("--plan --scale 7b", "--scale: '7b' is not one of 8b, 70b, 405b, 1t"),
        ("--plan launch.nodes=2", "--plan: measures nothing, so leave out overrides"),
        ("--store x train.steps=4", "train.steps: has no effect on a program"),
    ],
)
def test_a_wrong_argument_is_named(words: str, told: str) -> None:
    done = CliRunner().invoke(app, ["bench", "mlperf-checkpoint", *words.split()])
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {told}")


def test_a_plan_measures_nothing() -> None:
    words = ["bench", "mlperf-checkpoint", "--plan", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert list(json.loads(done.stdout)) == ["8b", "70b", "405b", "1t"]


def test_a_plan_is_of_one_scale_if_it_is_given() -> None:
    words = ["bench", "mlperf-checkpoint", "--plan", "--scale", "70b", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert list(json.loads(done.stdout)) == ["70b"]
