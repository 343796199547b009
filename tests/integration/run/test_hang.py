"""Ranks that hang: seen, told of, and started again."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import (
    ALONE,
    PACED,
    assert_same_run,
    command,
    complete,
    history,
    started,
)


def told(command: str, run: RunDir) -> str:
    """What `hpckit why` or `hpckit status` prints of the run."""
    done = CliRunner().invoke(
        app, [command, str(run.path)], env={"COLUMNS": "2000"}, catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return done.stdout


def squeezed(text: str) -> str:
    """The text without blanks and line breaks, wherever a terminal makes them."""
    return "".join(text.split())


def test_a_rank_that_stops_is_found_with_those_that_wait_for_it(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    with started(tmp_path, command(tmp_path, shards, PACED, "hang.step_s=10")) as it:
        stopped = it.wait_for("worker_started", rank=1)
        it.wait_for_step(23)
        os.kill(stopped["pid"], signal.SIGSTOP)
        first = it.wait_for("hang")
        second = it.wait_for("hang", 2)
        found = it.wait_for("hang_explained")
        answers = [told(name, it.run) for name in ("why", "status")]
        status, output = it.finish()
    assert status == 0, output
    assert_same_run(it.run, reference)
    lives = history(it.run).lives
    assert [life.generation for life in lives] == [1, 1], "they were to restart in place"
    assert lives[1].start_step >= 20
    assert (found["cause"], found["culprits"]) == ("stuck", [1])
    assert (found["examined"], found["waiting"]) == (2, 1)
    assert re.match(r"rank 0 waits in (.* )?(for )?\w+ #\d+ of group ", found["text"])
    assert re.search(r"; rank 1 on .* has not entered it: it is stopped by a signal", found["text"])
    for answer in (*answers, output):
        assert squeezed(found["text"]) in squeezed(answer), answer
    assert first["explanation"] == second["explanation"] == found["text"]
    stacks = (Path(path) for event in (first, second) for path in event["stacks"])
    paths = sorted(stacks, key=lambda path: path.name)
    assert [path.name for path in paths] == ["rank0.stacks", "rank1.stacks"]
    waiting, silent = (path.read_text() for path in paths)
    assert "language_model.py" in waiting
    assert "language_model.py" in silent or "does not answer: it is stopped" in silent


def test_a_rank_that_hangs_in_its_start_or_in_a_validation_is_started_again(
    tmp_path: Path, shards: Path
) -> None:
    stuck = (
        "entry=tests.integration.run.hanging_function:main",
        "hang.start_s=60",  # a busy machine takes more than ten seconds for a start
        "hang.validate_s=20",
    )
    validated = ("train.steps=12", "train.validate_every=4", f"data.validation={shards}")
    status, output = complete(tmp_path, command(tmp_path, shards, *ALONE, *stuck, *validated))
    assert status == 0, output
    (run,) = map(RunDir, tmp_path.glob("t-*"))
    told = [event for event in read_events(run.events) if event.kind == "hang"]
    assert [(event["phase"], event["step"]) for event in told] == [
        ("starting", 0),
        ("validating", 4),
    ]
    stacks = [Path(event["stacks"][0]).read_text() for event in told]
    assert all("hanging_function.py" in text for text in stacks)
    assert [life.generation for life in history(run).lives] == [1, 1], "in place, from step 0 or 4"
