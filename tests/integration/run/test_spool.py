"""A preempted run tells its checkpoint service how much time is left."""

from __future__ import annotations

from pathlib import Path

from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import DRILLED, command, complete, history


def test_the_last_save_of_a_preempted_run_has_a_deadline(tmp_path: Path, shards: Path) -> None:
    local = tmp_path / "local"
    place = (f"checkpoint.local={local}", "debug.drill.preempt_at=[13]", DRILLED)
    short = ("train.steps=20", "launch.nodes=1", "launch.nproc_per_node=1", "cluster.grace_s=45")
    status, output = complete(tmp_path, command(tmp_path, shards, *place, *short))
    assert status == 0, output
    run = RunDir(next(tmp_path.glob("t-*")))
    assert [life.end for life in history(run).lives] == ["preempted", "done"]
    # the last save of a generation that is asked to leave, and no other one
    (choice,) = [event for event in read_events(run.events) if event.kind == "checkpoint_tier"]
    assert choice["step"] >= 13
    assert choice["tier"] == "store"
    assert 0 < choice["left_s"] <= 45
    assert list(local.rglob("*")) == []
