"""How long a campaign waits for its run."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hpckit.faults.campaign import injection_trigger
from hpckit.faults.campaign.injection_trigger import InjectionTrigger
from hpckit.faults.fault_plan import DrillError
from hpckit.faults.site_faults import SiteFaultSet
from hpckit.report.overview import Queue, read_overview
from hpckit.report.run_state import RunState
from hpckit.rundir.directory import checkpoint_root
from tests.unit.hpckit.report.sample_runs import ran, submitted


def test_patience_is_for_runs_that_have_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("hpckit.faults.campaign.injection_trigger.time.monotonic", lambda: now_s)
    patience = injection_trigger._ActiveTimeout(300.0)
    for state, seconds, is_over in (
        (RunState.QUEUED, 5000.0, False),
        (RunState.STARTING, 200.0, False),
        (RunState.RUNNING, 90.0, False),
        (RunState.WAITING, 5000.0, False),
        (RunState.RUNNING, 20.0, True),
    ):
        now_s += seconds
        assert patience.is_over(state) is is_over, state


def test_a_job_on_its_way_back_to_the_queue_is_not_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("hpckit.faults.campaign.injection_trigger.time.monotonic", lambda: now_s)
    run = submitted(tmp_path / "run")
    follower = InjectionTrigger(run, SiteFaultSet({}, Path()), print)
    here = read_overview(run, Queue())
    assert (here.state, here.is_slurm) == (RunState.DEAD, False)
    assert follower._is_over(here), "on this machine nothing comes back by itself"
    assert here.spec is not None
    cluster = replace(here.spec.cluster, kind="slurm")
    gone = replace(here, spec=replace(here.spec, cluster=cluster))
    back = replace(gone, state=RunState.WAITING)
    for seconds, it, is_over in (
        (0.0, gone, False),
        (14.0, gone, False),
        (0.5, back, False),
        (14.0, gone, False),
        (16.0, gone, True),
    ):
        now_s += seconds
        assert follower._is_over(it) is is_over
    assert follower._is_over(read_overview(ran(tmp_path / "ended"), Queue()))


def test_a_checkpoint_is_damaged_only_where_another_one_is_left(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    trigger, here = (
        InjectionTrigger(run, SiteFaultSet({}, Path()), print),
        read_overview(run, Queue()),
    )
    assert here.spec is not None
    steps = Path(checkpoint_root(here.spec, run)) / "runs/r/steps"
    steps.mkdir(parents=True)

    def write(number: int, time_s: float) -> None:
        (steps / f"{number}.manifest").touch()
        os.utime(steps / f"{number}.manifest", (time_s, time_s))

    write(5, 100.0)
    with pytest.raises(DrillError, match="fewer than two checkpoints"):
        trigger._require_other_checkpoint(here)
    write(10, 110.0)
    trigger._require_other_checkpoint(here)
    trigger._damaged_s = 115.0
    write(15, 120.0)
    with pytest.raises(DrillError, match="fewer than two checkpoints"):
        trigger._require_other_checkpoint(here)
    write(20, 130.0)
    trigger._require_other_checkpoint(here)


def test_the_other_node_of_a_fault_between_two_is_one_that_trains() -> None:
    assert injection_trigger._beside(0, [0, 2]) == 2
    assert injection_trigger._beside(2, [0, 2]) == 0
    assert injection_trigger._beside(1, [0, 2]) == 2
    assert injection_trigger._beside(2, [2]) is None
