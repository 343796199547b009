"""Ranks that hang: seen, told of, and started again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hpckit.run.directory import RunDir
from tests.integration.runs import assert_same_run, command, history, started


def test_a_rank_that_stops_is_found_with_those_that_wait_for_it(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    with started(tmp_path, command(tmp_path, shards, "hang.step_s=3")) as it:
        stopped = it.wait_for("worker_started", rank=1)
        it.wait_for_step(23)
        os.kill(stopped["pid"], signal.SIGSTOP)
        first = it.wait_for("hang")
        second = it.wait_for("hang", 2)
        status, output = it.finish()
    assert status == 0, output
    assert_same_run(it.run, reference)
    lives = history(it.run).lives
    assert [life.generation for life in lives] == [1, 1], "they were to restart in place"
    assert lives[1].start_step >= 20
    found = (Path(path) for event in (first, second) for path in event["stacks"])
    paths = sorted(found, key=lambda path: path.name)
    assert [path.name for path in paths] == ["rank0.stacks", "rank1.stacks"]
    waiting, silent = (path.read_text() for path in paths)
    assert "language_model.py" in waiting
    assert "language_model.py" in silent or "does not answer: it is stopped" in silent
