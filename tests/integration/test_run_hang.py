"""Ranks that hang: seen, told of, and started again."""

from __future__ import annotations

from pathlib import Path

from hpckit.run.directory import RunDir
from tests.integration.run_commands import Typed
from tests.integration.runs import assert_same_run, command, history, started


def test_a_rank_that_stops_is_found_with_those_that_wait_for_it(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    with started(tmp_path, command(tmp_path, shards, "hang.step_s=3")) as it:
        it.wait_for_step(23)
        told = Typed(it.run, {}).text("drill", "hang", "--rank", "1", "--yes")
        first = it.wait_for("hang")
        second = it.wait_for("hang", 2)
        status, output = it.finish()
    assert status == 0, output
    assert "in 3 s all stacks are written down" in told
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
