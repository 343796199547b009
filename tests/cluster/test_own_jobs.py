"""Jobs of one's own, by the scripts of `slurm/`, that Slurm runs again: on a cluster that holds a
requeued job back for two minutes, as they do by themselves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.config.spec_parser import read_spec
from hpckit.rundir.directory import RunDir
from slurm.devcluster.cluster import Cluster
from tests.cluster import guard, unhurried
from tests.cluster.conftest import need, options
from tests.cluster.launched import Launched
from tests.cluster.slurm import PATIENCE_S, Slurm
from tests.cluster.wrapped import SIZE, begun, environment, overrides
from tests.integration.cli.run_commands import Typed
from tests.integration.run.runs import REPO, assert_same_run

HELD_BACK_S = 121.0


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One with Slurm's own times."""
    need("ports")
    chosen = replace(options("ports"), grace_s=30, cred_expire_s=None)
    with guard.cluster(tmp_path_factory.mktemp("slow"), chosen) as cluster:
        yield cluster


@pytest.fixture
def slurm(slow: Cluster) -> Iterator[Slurm]:
    """Without jobs, all nodes idle."""
    slurm = Slurm(slow)
    yield slurm
    slurm.reset()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """With a training function and an experiment of its own, whose runs are beside it."""
    folder = tmp_path / "project"
    (folder / "conf" / "experiment").mkdir(parents=True)
    shutil.copy(unhurried.__file__, folder / "mine.py")
    experiment = f"# @package _global_\nentry: mine:main\nroot: {tmp_path}/runs\n"
    (folder / "conf" / "experiment" / "mine.yaml").write_text(experiment)
    return folder


def submitted(slurm: Slurm, project: Path, script: str, *words: str) -> Launched:
    """A run by that script, from the project's folder; it has begun.

    Args:
        words: options of sbatch, --, overrides.
    """
    cut, log = words.index("--"), f"--output={project}/job.log"
    subprocess.run(
        ["sbatch", log, *words[:cut], str(REPO / "slurm" / script), *words[cut + 1 :]],
        env=environment(slurm),
        cwd=project,
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    return Launched(slurm, begun(project.parent / "runs"))


def own(shards: Path, *more: str) -> list[str]:
    """Overrides of a run of the project."""
    words = overrides(shards.parent, shards, *more)
    return ["experiment=mine", *(word for word in words if not word.startswith("root="))]


def assert_soon(it: Launched) -> None:
    """What Slurm runs again begins in the same job, and is not held back."""
    (asked,), (first, second) = it.events("job_requeued"), it.events("run_started")
    assert first["job"] == second["job"] == asked["job"]
    assert it.events("begins_soon", job=asked["job"]) != []
    assert second.time - asked.time < HELD_BACK_S
    assert it.events("degraded") == []


def test_preempted_it_goes_on_soon_with_what_it_began_with_whatever_the_project_is_by_then(
    slurm: Slurm, project: Path, shards: Path, reference: RunDir
) -> None:
    it = submitted(
        slurm, project, "train.sbatch", *SIZE, "--", *own(shards, "user_config.step_s=1")
    )
    it.wait_for_step(23)
    experiment = project / "conf" / "experiment" / "mine.yaml"
    experiment.write_text(f"{experiment.read_text()}oops: [")
    experiment.rename(experiment.with_name("ours.yaml"))
    (project / "mine.py").write_text("half (")
    slurm.run("srun", "--partition=high", "--nodes=3", "--exclusive", "true", within_s=PATIENCE_S)
    it.wait_for("run_ended", 2)
    slurm.wait_for_job(it.events("run_started")[0]["job"], "COMPLETED")
    assert_same_run(it.run, reference)
    assert it.verdicts() == ["preempted", "done"]
    assert_soon(it)
    assert it.run.submission_numbers() == [1]
    assert len(list((project.parent / "runs").glob("t-*"))) == 1


def test_one_of_a_range_of_nodes_has_all_that_it_comes_back_with(
    slurm: Slurm, project: Path, shards: Path
) -> None:
    other = slurm.submit("sleep 1000", project / "other.log", "--nodes=2", "--exclusive")
    slurm.wait_for_job(other, "RUNNING")
    paced = own(shards, "train.steps=100000", "user_config.unhurried=9")
    it = submitted(slurm, project, "elastic.sbatch", "--nodes=1-2", *SIZE[1:], "--", *paced)
    it.wait_for_step(3)
    slurm.run("scancel", other)
    slurm.wait_for_job(other, "CANCELLED")  # its nodes are free
    job = it.events("run_started")[0]["job"]
    slurm.run("scancel", "--signal=USR2", "--batch", job)
    assert it.wait_for("training_started", 2)["world_size"] == 2
    assert it.events("training_started")[0]["world_size"] == 1
    assert_soon(it)
    assert [read_spec(it.run.spec(n)).launch.nodes for n in it.run.submission_numbers()] == [1, 2]
    assert [event["submission"] for event in it.events("run_started")] == [1, 2]
    assert "every rank saved and exited" in Typed(it.run, slurm.cluster.env).text(
        "cancel", "--save"
    )
    it.wait_until_over()
    assert it.verdicts() == ["preempted", "stopped"]
