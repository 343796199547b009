"""A node that slows all others down is replaced by the next job, which excludes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.launched import launch
from tests.cluster.slurm import Slurm
from tests.integration.run.one_slow_node import SLOWER, losses
from tests.integration.run.runs import losses as logged

RANKS = 4
KEYS = (
    *("elastic.evict_stragglers=job", "elastic.evict_evidence_minutes=0.01"),
    *("train.trace_share=1", "train.steps=1000000", "checkpoint.every_steps=100000"),
    *("entry=tests.integration.run.one_slow_node:main", "launch.nproc_per_node=2"),
    *("debug.ledger=false", "train.micro_batch=1"),
)


@pytest.mark.thorough  # a spare takes over in a cheaper test of a run
def test_the_next_job_does_without_a_node_that_takes_three_times_as_long(
    ports: Slurm, tmp_path: Path, shards: Path
) -> None:
    it = launch(ports, tmp_path, shards, *KEYS)
    slower = it.run.path.parent / SLOWER
    it.wait_for_step(1)
    slower.write_text("1 2.0")
    evicted = it.wait_for("straggler_evicted")
    slower.unlink()  # the next job has another node of this number
    assert evicted["by"] == "job"
    (host,) = evicted["hosts"]
    assert host == it.events("run_started")[0]["hosts"][1]
    assert it.wait_for("straggler_eviction_result")["has_paid"]
    first, second = it.events("run_started")
    assert host in first["hosts"]
    assert host not in second["hosts"]
    assert ports.job(second["job"])["ExcNodeList"] == host
    assert it.events("run_ended")[0]["verdict"] == "evicted"
    assert it.verdicts() == ["evicted"]
    ports.run("scancel", *it.jobs())
    it.wait_until_over()
    found = logged(it.run)
    assert [*found.values()] == losses(len(found), RANKS)
