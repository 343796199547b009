"""What ends a campaign before its time leaves no run going on, and no folder in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpckit.faults.campaign import campaign_runs, injection_trigger
from hpckit.faults.campaign.campaign_runner import CampaignSetup, run_campaign, run_reference
from hpckit.faults.campaign.campaign_runs import CampaignError
from hpckit.faults.campaign.fault_schedule import ScheduledFault
from hpckit.faults.fault_plan import DrillKind
from hpckit.faults.site_faults import SiteFaultSet
from hpckit.report.overview import Queue, read_overview
from hpckit.rundir.directory import RunDir
from hpckit.rundir.supervisor_process import SupervisorError
from tests.integration.run.runs import end_leftovers


@pytest.fixture
def overrides(tmp_path: Path, shards: Path) -> Iterator[list[str]]:
    """Of a run that does not come to its end by itself."""
    yield [
        *("experiment=campaign", "train.steps=100000", "data=shards", f"data.shards={shards}"),
    ]
    for folder in (tmp_path / "reference", tmp_path / "runs"):
        end_leftovers(folder, "campaign-*")


def interrupt(said: str) -> None:
    raise KeyboardInterrupt


def quiet(said: str) -> None:
    pass


def only_run(folder: Path) -> RunDir:
    (path,) = folder.glob("campaign-*")
    return RunDir(path)


@pytest.mark.parametrize(
    ("told_s", "patience_s", "tell", "error"),
    [(0.0, 300.0, interrupt, KeyboardInterrupt), (300.0, 0.0, quiet, CampaignError)],
)
def test_a_reference_that_is_given_up_is_cancelled(
    tmp_path: Path,
    overrides: list[str],
    monkeypatch: pytest.MonkeyPatch,
    told_s: float,
    patience_s: float,
    tell: Callable[[str], None],
    error: type[BaseException],
) -> None:
    monkeypatch.setattr(injection_trigger, "TOLD_S", told_s)
    monkeypatch.setattr(injection_trigger, "PATIENCE_S", patience_s)
    with pytest.raises(error):
        run_reference(tmp_path, overrides, tell)
    assert read_overview(only_run(tmp_path / "reference"), Queue()).word == "stopped"


def test_a_fault_that_the_machine_refuses_ends_in_a_judgement(
    tmp_path: Path, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: object) -> str:
        monkeypatch.setattr(injection_trigger._ActiveTimeout, "is_over", lambda *_: True)
        raise SupervisorError("it is held by another host")

    monkeypatch.setattr(injection_trigger, "execute_fault_plan", elsewhere)
    stage = CampaignSetup(overrides, RunDir(tmp_path / "none"), SiteFaultSet({}, Path()), quiet)
    folder = tmp_path / "a campaign, of x=1"
    folder.mkdir()
    found = run_campaign(folder, [ScheduledFault(1, DrillKind.WORKER, 0.0)], stage)
    assert found.problems[0].startswith("worker at step 1: it is held by another host")
    assert read_overview(found.run, Queue()).word == "stopped"


def test_a_run_that_cannot_be_begun_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="no: unknown key"):
        campaign_runs.start_run(tmp_path / "new", ["no.such=1"])
    assert not (tmp_path / "new").exists()
