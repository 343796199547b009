"""Evaluations as jobs of Slurm, in a partition of low priority."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.events.event_log import read_events
from hpckit.report.evaluation.evaluation_records import read_evaluations
from tests.cluster.launched import launch
from tests.cluster.slurm import PATIENCE_S, Slurm, wait_for


def test_a_preempted_evaluation_runs_again_and_is_no_job_of_the_run(
    ports: Slurm, shards: Path, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    it = launch(
        ports,
        tmp_path,
        shards,
        "launch.nodes=1",
        "cluster.slurm.partition=high",
        "eval.every=60",
        "eval.entry=tests.cluster.evaluating:evaluate",
        "eval.metric=ranks",
        "eval.nproc_per_node=2",
        "eval.slurm.partition=low",
        f"user_config.starts={starts}",
    )
    job = it.wait_for("evaluation_submitted", step=60)["job"]
    it.wait_for("run_ended")
    it.wait_until_over()
    wait_for(starts.exists, "the evaluation", PATIENCE_S)
    assert ports.job(job)["Partition"] == "low"
    assert int(ports.job(job)["Nice"]) == 1000

    status = CliRunner().invoke(app, ["status", str(it.run.path), "--json"], env=ports.cluster.env)
    told = json.loads(status.stdout)
    assert (told["state"], told["evaluations"][0]["state"]) == ("ended", "running")
    assert all(one["number"] != job for one in told["jobs"])

    urgent = ports.submit(
        "true", tmp_path / "urgent", "--partition=high", "--nodes=3", "--exclusive"
    )
    ports.wait_for_job(urgent, "COMPLETED")
    wait_for(lambda: ports.job(job)["Restarts"] == "1", "a requeue", PATIENCE_S)
    ports.wait_for_job(job, "COMPLETED")
    assert starts.read_text().split() == ["60", "60"]
    (found,) = read_evaluations(it.run, read_events(it.run.events))
    assert found.metrics["eval_ranks"] == 2.0
    assert [end is not None for _, end in found.attempts] == [False, True]
    assert len(found.submitted) == 1
