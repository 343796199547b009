"""`make demo`'s own run: what the README promises of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import PACED, REPO, complete, history
from tests.startup.fork_request import ADDRESS


def test_the_demo_keeps_its_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In half of its steps, with a smaller model; it is preempted early. Each of its processes does
    its imports by itself, as outside of the tests."""
    monkeypatch.setenv(ADDRESS, "0")
    fewer = [
        "model=gpt_nano",
        "train.steps=60",
        "debug.drill.preempt_at=[8,16]",  # long before the end: steps go on meanwhile
        PACED,
        "checkpoint.every_steps=15",
    ]
    command = [sys.executable, str(REPO / "launch.py"), "experiment=demo", f"root={tmp_path}"]
    status, output = complete(tmp_path, [*command, *fewer])
    assert status == 0, output
    run = RunDir(next(tmp_path.glob("demo-*")))
    story = history(run)
    assert [life.nodes for life in story.lives] == [2, 1, 2]
    assert [life.end for life in story.lives] == ["preempted", "preempted", "done"]
    assert "60 kept, 0 repeated" in output
    assert re.search(r"epoch 1: (\d+) of \d+ seen", output), output
    assert "more than once" not in output
    first, last = story.kept[1]["loss"], story.kept[60]["loss"]
    assert last < 0.8 * first, "it was to learn something"
    assert f"hpckit report {run.path}" in output
    assert list(run.tensorboard.glob("events.out.tfevents.*"))
