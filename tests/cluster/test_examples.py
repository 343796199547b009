"""The programs of examples/ as jobs of a real Slurm: killed, signalled by Slurm, carried on by the
successor, and each step the one of the program as it was before hpckit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import SLURM, Launched
from tests.cluster.slurm import PATIENCE_S, Slurm
from tests.integration.examples.launched_programs import (
    EXAMPLES,
    launch_line,
    parameters_after,
    parameters_at_begin,
    project_with,
    trained,
    undisturbed,
)
from tests.integration.run.runs import history, kill
from tests.startup.fork_request import WITH

SAVE_EVERY = 20  # steps, in the programs


def submit(slurm: Slurm, folder: Path, program: Path, *words: str, key: str = "") -> Launched:
    """Submit a program of the project in `folder` as a job of two ranks, one on each node.

    Args:
        key: one more key of the run.
    """
    keys = [*SLURM, "launch.nodes=2", *([key] if key else [])]
    line = launch_line(folder, program, *words, keys=keys)
    env = os.environ | slurm.cluster.env
    done = subprocess.run(
        line, cwd=folder / "project", env=env, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return Launched(slurm, RunDir(next((folder / "runs").glob("t-*"))))


def disturb(it: Launched) -> None:
    """Kill a rank, and let Slurm signal the job some steps later; a successor trains then."""
    it.wait_for_step(24)
    assert kill(it.wait_for("worker_started", rank=1)["pid"])
    it.wait_for("worker_started", 2, rank=1)
    it.wait_for_step(32)
    job = it.wait_for("run_started")["job"]
    with it.paused():  # or a quick program may end before the signal comes
        it.slurm.run("scancel", "--batch", "--signal=USR2", job)
        it.wait_for("asked")
    it.wait_for("training_started", generation=2)
    assert it.wait_for("run_started", 2)["job"] != job


@pytest.mark.parametrize(
    ("name", "needed", "words"),
    [
        ("ddp", "torch", ("--steps", "60", "--save-every", "10")),
        ("huggingface", "transformers.trainer", ("--epochs", "1.5")),
    ],
)
def test_it_is_carried_on_by_the_successor(
    ports: Slurm,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    needed: str,
    words: tuple[str, ...],
) -> None:
    package = needed.partition(".")[0]
    pytest.importorskip(package, reason="the dev extra has it")
    if package != "torch":
        monkeypatch.setenv(WITH, package)
    before, after = EXAMPLES / name / "before.py", EXAMPLES / name / "after.py"
    whole = undisturbed(tmp_path / "before", before, *words, imports=[needed])
    folder = tmp_path / "after"
    project_with(folder / "project", after)
    it = submit(ports, folder, after, *words)
    disturb(it)
    it.wait_for("run_ended", 2)
    it.wait_until_over()
    found = trained(folder)
    assert found.ends == ["preempted", "done"]
    assert list(whole[0]) == list(range(1, 61))
    assert found.steps == whole
    killed, left, done = history(found.run).lives
    assert killed.end == "worker lost"
    assert done.start_step == left.end_step, "no step was repeated after the preemption"


@pytest.mark.parametrize(
    ("name", "needed"), [("huggingface", "transformers"), ("lightning", "lightning")]
)
def test_it_goes_on_in_the_same_job_on_the_node_that_is_left(
    namespaces: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, needed: str
) -> None:
    """From the newest checkpoint, as the node was lost without notice."""
    pytest.importorskip(needed, reason="the dev extra has it")
    monkeypatch.setenv(WITH, needed)
    program = EXAMPLES / name / "after.py"
    project_with(tmp_path / "project", program)
    it = submit(namespaces, tmp_path, program, "--epochs", "1", key="elastic=shrink")
    if name == "lightning":  # the other one's saves are durable when they return
        it.wait_for("checkpoint_committed")
    it.wait_for_step(24)
    namespaces.cluster.node(it.wait_for("run_started")["hosts"][1]).kill()
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert it.verdicts() == ["infra", "done"]
    assert [event["nodes"] for event in it.events("nodes_chosen")] == [[0]]
    saved = history(it.run).lives[1].start_step
    assert saved > 0
    assert saved % SAVE_EVERY == 0
    assert parameters_at_begin(it.run, 2) == parameters_after(it.run, 1, saved)
    assert list(trained(tmp_path).steps[0]) == list(range(1, 81)), "an epoch of one rank"
