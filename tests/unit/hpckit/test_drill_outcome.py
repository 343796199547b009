"""What a campaign tells of itself where next to nothing happened."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.drill.campaign import Outcome
from hpckit.drill.outcome import markdown, result_of
from hpckit.run.directory import RunDir
from hpckit.run.events import EventLog


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_run_that_no_fault_has_reached_has_a_result(tmp_path: Path, steps: int) -> None:
    run = RunDir(tmp_path)
    with EventLog(run.events) as events:
        for step in range(1, steps + 1):
            events.emit("step", generation=1, step=step, step_s=0.2)
    found = result_of(Outcome(run, run, (), ("not one fault was done.",)))
    assert (found.faults, found.steps, found.rows) == (0, steps, ())
    assert "- not one fault was done." in markdown(found)
