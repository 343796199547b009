"""What the supervisor knows of saved steps; the rest of it is tested with real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from checkpointing import Checkpointer
from hpckit.launch.prepare import move_aside
from hpckit.launch.supervise import newest_step
from hpckit.run.directory import RunDir, run_name
from tests.unit.hpckit.hpckit_parts import make_spec


def save(where: str, run: RunDir, *steps: int) -> None:
    checkpointer = Checkpointer(where, run=run.name)
    for step in steps:
        checkpointer.save(step, {"weights": {"w": torch.ones(3)}, "run": {"step": step}})
    checkpointer.close()


@pytest.mark.parametrize("url", [None, "{}/store", "file://{}/store"])
def test_progress_is_seen_wherever_checkpoints_are_kept(tmp_path: Path, url: str | None) -> None:
    where = url and url.format(tmp_path)
    spec = make_spec({"checkpoint.url": where})
    run = RunDir(tmp_path / run_name(spec))
    run.path.mkdir()
    assert newest_step(spec, run) == 0
    save(where or str(run.checkpoints), run, 5, 12)
    assert newest_step(spec, run) == 12


def test_another_run_of_the_same_store_is_no_progress_of_this_one(tmp_path: Path) -> None:
    spec = make_spec({"checkpoint.url": str(tmp_path / "store")})
    save(str(tmp_path / "store"), RunDir(tmp_path / "other"), 7)
    assert newest_step(spec, RunDir(tmp_path / "run")) == 0


@pytest.mark.parametrize("url", [None, "{}/store"])
def test_a_run_begun_anew_has_no_checkpoint_to_go_on_from(tmp_path: Path, url: str | None) -> None:
    """What `launch.py --fresh` does to an earlier run of the same name."""
    where = url and url.format(tmp_path)
    spec = make_spec({"checkpoint.url": where})
    run = RunDir(tmp_path / run_name(spec))
    run.path.mkdir()
    save(where or str(run.checkpoints), run, 5)
    move_aside(run, spec)
    run.path.mkdir()
    assert newest_step(spec, run) == 0
