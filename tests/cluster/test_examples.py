"""The programs of examples/ as jobs of a real Slurm: killed, signalled by Slurm, carried on by the
successor, and each step the one of the program as it was before hpckit."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from tests.cluster.launched import PATIENCE_S, SLURM, Launched
from tests.cluster.slurm import Slurm
from tests.integration.cli.run_commands import Typed
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


def submit(slurm: Slurm, folder: Path, program: Path, *words: str, nodes: int) -> Launched:
    """Submit a program of the project in `folder` as a job of so many ranks, one on each node."""
    line = launch_line(folder, program, *words, keys=[*SLURM, f"launch.nodes={nodes}"])
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
    it.slurm.run("scancel", "--batch", "--signal=USR2", job)
    it.wait_for("training_started", generation=2)
    assert it.wait_for("run_started", 2)["job"] != job


def test_ddp_is_carried_on_by_the_successor(ports: Slurm, tmp_path: Path) -> None:
    before, after = EXAMPLES / "ddp/before.py", EXAMPLES / "ddp/after.py"
    words = ("--steps", "60", "--save-every", "10")
    whole = undisturbed(tmp_path / "before", before, *words, imports=["numpy"])
    folder = tmp_path / "after"
    project_with(folder / "project", after)
    it = submit(ports, folder, after, *words, nodes=2)
    disturb(it)
    it.wait_for("run_ended", 2)
    it.wait_until_over()
    found = trained(folder)
    assert found.ends == ["preempted", "done"]
    assert found.steps == whole
    killed, left, done = history(found.run).lives
    assert killed.end == "worker lost"
    assert done.start_step == left.end_step, "no step was repeated after the preemption"


def test_huggingface_is_carried_on_by_the_successor_and_on_fewer_nodes(
    ports: Slurm, tmp_path: Path
) -> None:
    pytest.importorskip("transformers", reason="the dev extra has transformers")
    before, after = EXAMPLES / "huggingface/before.py", EXAMPLES / "huggingface/after.py"
    words = ("--epochs", "2")
    whole = undisturbed(
        tmp_path / "before", before, *words, imports=["transformers.trainer", "accelerate"]
    )
    folder = tmp_path / "after"
    project_with(folder / "project", after)
    it = submit(ports, folder, after, *words, nodes=2)
    disturb(it)
    it.wait_for_step(history(it.run).lives[-1].start_step + 4)
    with ThreadPoolExecutor(1) as typing, it.paused():
        cancelled = typing.submit(Typed(it.run, ports.cluster.env).text, "cancel", "--save")
        it.wait_for("asked", request="stop")
    assert "newest checkpoint" in cancelled.result()
    it.wait_until_over()
    stopped_at = int(read_json(it.run.verdict)["saved_step"])
    submit(ports, folder, after, *words, nodes=1)
    it.wait_for("run_ended", 3)
    it.wait_until_over()
    found = trained(folder)
    assert found.ends == ["preempted", "stopped", "done"]
    assert list(whole[0]) == list(range(1, 81))
    for rank in (0, 1):
        of_two = {n: seen for n, seen in found.steps[rank].items() if n <= stopped_at}
        assert of_two == {n: seen for n, seen in whole[rank].items() if n <= stopped_at}
    assert parameters_at_begin(found.run, 3) == parameters_after(found.run, 2, stopped_at)
    assert list(found.steps[0]) == list(range(1, 161)), "two epochs of one rank"
    assert max(found.steps[1]) == stopped_at
    assert found.times_at_end == 1
