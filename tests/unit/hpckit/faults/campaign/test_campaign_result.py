"""What a campaign tells of itself where next to nothing happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpckit.events.event_log import EventLog
from hpckit.faults.campaign.campaign_result import markdown, result_of
from hpckit.faults.campaign.campaign_runner import CampaignOutcome
from hpckit.faults.campaign.fault_log import RecordedFault
from hpckit.faults.fault_plan import DrillKind
from hpckit.rundir.directory import RunDir


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_run_that_no_fault_has_reached_has_a_result(tmp_path: Path, steps: int) -> None:
    run = RunDir(tmp_path)
    with EventLog(run.events) as events:
        for step in range(1, steps + 1):
            events.emit_kind("step", generation=1, step=step, step_s=0.2)
    found = result_of(CampaignOutcome(run, run, (), ("no fault was caused.",)))
    assert (found.faults, found.steps, found.rows) == (0, steps, ())
    assert "- no fault was caused." in markdown(found)


def test_clocks_of_hosts_that_differ_do_not_lose_the_result(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    life = {"generation": 1, "world_size": 1, "step": 1, "step_s": 0.2}
    told = ("step", 1, 98.0), ("worker_started", 0, 100.3), ("worker_lost", 1, 100.5)
    more = ("training_started", 1, 101.0), ("step", 2, 102.0)
    run.events.write_text(
        "".join(
            json.dumps({**life, "time": time, "kind": kind, "step": step}) + "\n"
            for kind, step, time in (*told, *more)
        )
    )
    struck = RecordedFault(100.0, DrillKind.WORKER, 1, "SIGKILL")
    (row,) = result_of(CampaignOutcome(run, run, (struck,), ())).rows
    assert (row.parts_s["meet"], row.total_s) == (0.0, 2.0)
