"""A run whose disk is full, with all that it writes: for a while, and at its last save."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import UNHURRIED, launch
from tests.cluster.slurm import Slurm
from tests.integration.checkpoint.store_damage import check
from tests.integration.cli.run_commands import Typed
from tests.integration.run.runs import (
    ON_ONE_NODE,
    await_commit,
    history,
    losses,
    samples_by_step,
)
from tests.services.fixtures import disk_of

FULL_S = 3.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """With room for a run, and for not much more."""
    with disk_of(48, tmp_path) as path:
        yield path


def fill(disk: Path) -> Path:
    """The file that takes all room that there is."""
    path = disk / "fill"
    for size in (1 << 20, 4096):
        with pytest.raises(OSError), path.open("ab", buffering=0) as file:  # noqa: PT012
            while True:
                file.write(b"\0" * size)
    return path


def test_a_run_outlives_a_full_disk_or_says_so_and_goes_on_when_there_is_room(
    ports: Slurm, disk: Path, shards: Path, reference: RunDir
) -> None:
    free = ("health.disk_free_gib=null", "cluster.grace_s=5")
    words = (*ON_ONE_NODE, UNHURRIED, "user_config.step_s=0.75", *free)
    it = launch(ports, disk, shards, *words, "retry.max_restarts=0", "retry.crash=0")
    typed = Typed(it.run, ports.cluster.env)
    it.wait_for("checkpoint_committed", step=20)
    taken = fill(disk)
    time.sleep(FULL_S)
    taken.unlink()
    await_commit(it, 50)
    with it.paused():  # before they save step 60
        taken = fill(disk)
    it.wait_until_over()
    assert it.verdicts() == ["crash"]
    assert f"the disk of {it.run.path} is full" in typed.text("why")
    assert max(check(it.run.checkpoints)) == 50
    taken.unlink()
    typed.text("resume", "--detach")
    it.wait_for("run_ended", verdict="done")
    it.wait_until_over()
    assert not any(check(it.run.checkpoints).values())
    lives = history(it.run).lives
    assert [(life.start_step, life.end_step) for life in lives][1:] == [(50, 60)]
    told, seen = losses(it.run), samples_by_step(it.run)  # but for what the full disk did not take
    assert {*range(1, 21), *range(51, 61)} <= told.keys() & seen.keys()
    assert told.items() <= losses(reference).items()
    assert seen.items() <= samples_by_step(reference).items()
