"""torchtitan's parts with our checkpoints: killed, the same to the bit; other worlds and steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integration.examples.example_programs import (
    TORCHRUN,
    assert_same_end,
    beside,
    kill_service,
    run,
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
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "loss" not in ended.stdout
    return ended.stderr


def test_killed_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    reference, root = tmp_path / "reference", tmp_path / "root"
    with beside(LOOP, reference, *STEPS, launcher=TORCHRUN) as finished:
        first = run(LOOP, root, *STEPS, launcher=TORCHRUN, kill_at=45)
        kill_service(root / "checkpoint", RUN)
        durable = steps_kept(root / "checkpoint", RUN)  # none, if the disk is slower than the steps
        second = run(LOOP, root, *STEPS, launcher=TORCHRUN)
        whole = finished.result().losses
    assert sorted(whole) == list(range(1, 61))
    assert min(second.losses) > max(durable, default=0)
    assert first.losses.items() <= whole.items()
    assert second.losses.items() <= whole.items()
    assert_same_end(root / "checkpoint", reference / "checkpoint", RUN)

    last, before, *_ = steps_kept(root / "checkpoint", RUN)  # a slow disk has left some out
    earlier = run(LOOP, root, *STEPS, "--load-step", before, launcher=TORCHRUN)
    assert earlier.losses == {step: loss for step, loss in whole.items() if step > before}
    assert last == 60
    assert "saved by 2 data-parallel ranks, but there are 1 now" in refusal(root, "--steps", 80)
    assert "step 7" in refusal(root, "--load-step", 7)
    anew = run(LOOP, root, "--steps", 80, "--exclude", "dataloader")
    assert sorted(anew.losses) == list(range(61, 81))
