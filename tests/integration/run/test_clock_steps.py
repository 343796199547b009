"""A run goes on, and its story is right, while the clock of its node is set forward and back by
hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.rundir.directory import RunDir
from tests.integration.cli.run_commands import Typed
from tests.integration.run.runs import (
    ON_ONE_NODE,
    PACED,
    assert_same_run,
    command,
    history,
    kill,
    started,
)
from tests.services.clock import SteppedClock

HOUR_S = 3600


def test_the_clock_is_set_while_parts_are_killed(
    tmp_path: Path,
    shards: Path,
    reference: RunDir,
    stepped_clock: SteppedClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        for name, value in stepped_clock.env.items():
            patched.setenv(name, value)
        with started(tmp_path, command(tmp_path, shards, *ON_ONE_NODE, PACED)) as it:
            it.wait_for_step(13)
            stepped_clock.step_to(3 * HOUR_S)
            it.wait_for_step(23)
            kill(it.wait_for("worker_started", rank=1)["pid"])
            it.wait_for("training_started", 2)
            it.wait_for_step(33)
            stepped_clock.step_to(-5 * HOUR_S)
            it.wait_for_step(43)
            kill(it.wait_for("agent_started", node=0)["pid"])
            status, output = it.finish()
    assert status == 0, output
    assert_same_run(it.run, reference)
    story = history(it.run)
    assert [life.end for life in story.lives] == ["worker lost", "infra", "done"]
    assert all(0 < gap.lost_s < HOUR_S for gap in story.interruptions)
    assert all(0 < event["seconds"] < HOUR_S for event in story.committed)
    for word, said in (
        ("status", "state       done"),
        ("why", "reached the last step"),
        ("report", "60 kept"),
    ):
        exit_status, out, err = Typed(it.run, {}).type(word)
        assert exit_status == 0, err
        assert said in out
