"""torchtitan's parts with our checkpoints: killed, the same to the bit; other worlds and steps."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.forkserver import WITH_IMPORTS
from tests.integration.examples.example_programs import (
    assert_same_end,
    beside,
    forked,
    kill_service,
    steps_kept,
)
from tests.integration.service.running_services import REPOSITORY

LOOP, RUN = "torchtitan_loop", "torchtitan"
STEPS = ("--steps", 60)


def refusal(root: Path, *arguments: object) -> str:
    """What it says that trains nothing."""
    program = [sys.executable, "-m", f"checkpointing.examples.{LOOP}", "--root", str(root)]
    ended = subprocess.run(
        [*program, *map(str, arguments)],
        cwd=REPOSITORY,
        env=os.environ | WITH_IMPORTS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "loss" not in ended.stdout
    return ended.stderr


def test_killed_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    reference, root = tmp_path / "reference", tmp_path / "root"
    with forked(LOOP) as forks:
        with beside(partial(forks.run, reference, *STEPS, ranks=2)) as finished:
            first = forks.run(root, *STEPS, ranks=2, kill_at=45)
            kill_service(root / "checkpoint", RUN)
            durable = steps_kept(root / "checkpoint", RUN)  # none, if the disk is slower
            second = forks.run(root, *STEPS, ranks=2)
            whole = finished.result().losses
        assert sorted(whole) == list(range(1, 61))
        assert min(second.losses) > max(durable, default=0)
        assert first.losses.items() <= whole.items()
        assert second.losses.items() <= whole.items()
        assert_same_end(root / "checkpoint", reference / "checkpoint", RUN)

        last, before, *_ = steps_kept(root / "checkpoint", RUN)  # a slow disk has left some out
        earlier = forks.run(root, *STEPS, "--load-step", before, ranks=2)
        assert earlier.losses == {step: loss for step, loss in whole.items() if step > before}
        assert last == 60
        assert "saved by 2 data-parallel ranks, but there are 1 now" in refusal(root, "--steps", 80)
        assert "step 7" in refusal(root, "--load-step", 7)
        anew = forks.run(root, "--steps", 80, "--exclude", "dataloader")
    assert sorted(anew.losses) == list(range(61, 81))
