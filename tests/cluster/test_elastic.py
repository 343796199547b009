"""Runs that lose a node, and go on in the same job; or without the node that led them."""

from __future__ import annotations

from pathlib import Path

from checkpointing import list_run
from hpckit.rundir.directory import RunDir
from tests.cluster.former import former
from tests.cluster.launched import UNHURRIED, Launched, launch
from tests.cluster.slurm import PATIENCE_S, Slurm, wait_for
from tests.cluster.wrapped import SIZE, begun, overrides, wrapper
from tests.integration.run.runs import assert_same_run, history, losses, samples_by_step


def test_a_spare_takes_the_place_of_a_node_without_power(
    namespaces: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    it = launch(namespaces, tmp_path, shards, UNHURRIED, "elastic=spares")
    it.wait_for_step(23)
    chosen = it.events("nodes_chosen")[0]
    kept, lost = chosen["nodes"]
    namespaces.cluster.node(chosen["hosts"][1]).kill()
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert_same_run(it.run, reference)
    assert it.verdicts() == ["infra", "done"]
    (spare,) = {0, 1, 2} - {kept, lost}
    assert it.events("nodes_chosen")[1]["nodes"] == sorted((kept, spare))
    assert [event["host"] for event in it.events("node_lost")] == [chosen["hosts"][1]]
    assert len(it.events("run_started")) == 1


def test_a_job_of_ones_own_shrinks_when_a_node_is_cut_off_which_writes_nothing_any_more(
    namespaces: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    """By `sbatch slurm/elastic.sbatch`, whose `elastic=shrink` makes the same of launch.py's."""
    options = ("--parsable", "--output=/dev/null", *SIZE)
    words = overrides(tmp_path / "runs", shards, UNHURRIED)
    done = wrapper(namespaces, "sbatch", *options, "slurm/elastic.sbatch", *words)
    assert done.returncode == 0, done.stderr
    it = Launched(namespaces, begun(tmp_path / "runs"))
    it.wait_for("checkpoint_committed", step=20)
    it.wait_for_step(23)
    host = it.events("run_started")[0]["hosts"][1]
    with former(it.run, step=24) as old:
        namespaces.cluster.node(host).cut()
        it.wait_for("nodes_chosen", generation=2)
        namespaces.cluster.node(host).heal()
        it.wait_for("training_started", generation=2)
        old.assert_refused()
    assert it.wait_for("run_ended")["verdict"] == "done"
    assert old.save.id not in {info.id for info in list_run(str(it.run.checkpoints), it.run.name)}
    namespaces.wait_for_job(done.stdout.strip(), "COMPLETED")
    assert it.verdicts() == ["infra", "done"]
    assert [event["nodes"] for event in it.events("nodes_chosen")][-1] == [0]
    assert samples_by_step(it.run) == samples_by_step(reference)
    assert losses(it.run).keys() == losses(reference).keys()
    assert [life.start_step >= 20 for life in history(it.run).lives] == [False, True]


def test_the_supervisor_is_lost_with_its_node_and_the_successor_goes_on(
    namespaces: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    it = launch(namespaces, tmp_path, shards, UNHURRIED, "elastic=spares")
    successor = it.wait_for("successor_queued")
    it.wait_for_step(23)
    started = it.events("run_started")[0]
    namespaces.cluster.node(started["hosts"][0]).kill()
    assert it.wait_for("run_started", 2)["job"] != started["job"]
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert_same_run(it.run, reference)
    assert namespaces.job(started["job"])["JobState"] == "CANCELLED"
    released, *_ = it.events("successor_released")  # the end of the job takes Slurm long
    assert (released["job"], released["former"]) == (successor["job"], started["job"])


def test_a_supervisor_that_was_only_out_of_reach_sees_its_job_cancelled_by_no_person(
    namespaces: Slurm, tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    """It trains on its own node meanwhile, and leaves that to the successor."""
    slow = (UNHURRIED, "user_config.unhurried=2", "user_config.step_s=3")
    it = launch(namespaces, tmp_path, shards, "elastic=shrink", *slow)
    it.wait_for("successor_queued")
    it.wait_for_step(23)
    started = it.events("run_started")[0]
    node = namespaces.cluster.node(started["hosts"][0])
    node.cut()
    wait_for(it.run.orphan(started["job"]).exists, "an agent that ends the job", PATIENCE_S)
    node.heal()
    assert it.wait_for("run_started", 2)["job"] != started["job"]
    it.wait_until_over()
    assert samples_by_step(it.run) == samples_by_step(reference)
    assert losses(it.run).keys() == losses(reference).keys()
    assert [event["verdict"] for event in it.events("run_ended")] == ["preempted", "done"]
