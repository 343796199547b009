"""Checkpoints are evaluated beside training, which does not notice it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from checkpointing import Store
from checkpointing.store.pins_and_labels import marks
from hpckit.cli.main import app
from hpckit.events.event_log import read_events
from hpckit.report.evaluation.evaluation_records import (
    EvaluationRecord,
    EvaluationState,
    known_and_waiting,
)
from hpckit.report.performance.speed_report import last_spec
from hpckit.rundir.directory import RunDir
from tests.integration.cli.run_commands import HPCKIT
from tests.integration.run.runs import (
    ON_ONE_NODE,
    PACED,
    REPO,
    await_commit,
    command,
    eventually,
    losses,
    started,
)
from tests.startup.fork_request import ADDRESS

ENTRY = "tests.integration.run.evaluations"
EVALUATED = (
    *ON_ONE_NODE,
    PACED,
    "checkpoint.every_steps=30",  # none is skipped because an earlier save is under way
    "hang=none",
    "checkpoint.keep.last=1",
    "eval.every=30",
    "eval.nice=0",  # a busy machine would never run it
    f"eval.entry={ENTRY}:by_model",
    "eval.metric=earliness",
)


def test_evaluations_that_are_killed_run_again_and_training_is_the_same_bit_for_bit(
    reference: RunDir, shards: Path, tmp_path: Path
) -> None:
    """Step 30 is evaluated while the ranks stand still, whoever is killed; the last one when the
    run is over."""
    root = tmp_path / "root"
    words = (*EVALUATED, f"user_config.starts={tmp_path / 'starts'}")
    with started(root, command(root, shards, *words)) as it:
        await_commit(it, 30)
        with it.paused():
            it.wait_until(lambda: states(it.run).get(30) is EvaluationState.DONE)
        status, output = it.finish()
        assert status == 0, output
        run = it.run
        eventually(lambda: states(run).get(60) is EvaluationState.DONE or None)

    assert losses(run) == losses(reference)
    first, last = evaluations(run)
    assert len(first.submitted) == 3, "its process was killed, and what waited for that"
    assert [end and end.error is not None for _, end in first.attempts] == [True, None, False]
    assert first.metrics["eval_draw"] == last.metrics["eval_draw"], "the random state is fixed"
    assert (tmp_path / "starts").read_text().split() == ["30", "30", "30", "60"]

    with_metrics, best = marked(run)
    assert with_metrics == {30: first.metrics, 60: last.metrics}
    assert best == 30, "retention keeps it, as nothing else does"

    told = report(run, "status", "--json")["evaluations"]
    assert [one["state"] for one in told] == ["done", "done"]
    assert report(run, "why", "--json")["state"] == "ended"
    shown = CliRunner().invoke(app, ["report", str(run.path)]).stdout
    assert "eval_earliness 0.03333 at step 30, 0.01667 at step 60; best 0.03333 at step 30" in (
        " ".join(shown.split())
    )
    assert report(run, "cost", "--json")["sum"]["node_hours"]["evaluation"] > 0

    done = subprocess.run(
        [HPCKIT, "eval", f"{run.path}@best", "--entry", f"{ENTRY}:by_load", "--json"],
        cwd=REPO,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", ADDRESS: "0"},  # with imports of its own
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["step"], found["metrics"]) == (30, first.metrics), "the norm is the same"
    assert marked(run)[0][30] == first.metrics, "the other metrics stay"


def evaluations(run: RunDir) -> list[EvaluationRecord]:
    return known_and_waiting(run, read_events(run.events), last_spec(run))


def states(run: RunDir) -> dict[int, EvaluationState]:
    return {one.step: one.state for one in evaluations(run)}


def marked(run: RunDir) -> tuple[dict[int, dict[str, float]], int]:
    """The metrics that marks give to steps, and the step of the best checkpoint."""
    store = Store.open(str(run.checkpoints))
    try:
        found = marks(store, run.name)
    finally:
        store.close()
    steps = {name: int(mark.id.partition("-")[0]) for name, mark in found.items()}
    metrics = {steps[name]: dict(mark.metrics) for name, mark in found.items() if mark.metrics}
    return metrics, steps["best"]


def report(run: RunDir, *words: str) -> dict[str, Any]:
    name, *options = words
    result = CliRunner().invoke(app, [name, str(run.path), *options])
    found: dict[str, Any] = json.loads(result.stdout)
    return found
