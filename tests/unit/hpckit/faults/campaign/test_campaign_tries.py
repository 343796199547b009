"""`hpckit drill campaign --tries`: runs that are played by nobody, of which some fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpckit.cli.drill import app
from hpckit.faults.campaign import campaign_runner as campaigns
from hpckit.faults.campaign.campaign_runner import CampaignOutcome, CampaignSetup
from hpckit.faults.campaign.fault_schedule import (
    USUAL,
    ScheduledFault,
    load_schedule,
    save_schedule,
)
from hpckit.faults.fault_plan import DrillKind
from hpckit.rundir.directory import RunDir

SCHEDULE = [
    ScheduledFault(10 * number, kind, 0.5)
    for number, kind in enumerate(("slow", "worker", "nan", "node", "hang", "agent"), 1)
]
GUILTY = {DrillKind.NAN, DrillKind.AGENT}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders of campaigns: each fails that has both of `GUILTY`."""
    found: list[Path] = []

    def play(
        folder: Path, schedule: Sequence[ScheduledFault], stage: CampaignSetup
    ) -> CampaignOutcome:
        found.append(folder)
        fails = {planned.kind for planned in schedule} >= GUILTY
        return CampaignOutcome(
            RunDir(folder), RunDir(folder), (), ("step 9: lost",) if fails else ()
        )

    monkeypatch.setattr(campaigns, "run_reference", lambda *_: RunDir(Path("reference")))
    monkeypatch.setattr(campaigns, "run_campaign", play)
    return found


def test_fewer_faults_that_fail_as_well_are_looked_for(tmp_path: Path, played: list[Path]) -> None:
    save_schedule(tmp_path / "faults.jsonl", SCHEDULE)
    place = tmp_path / "c"
    words = ["campaign", f"--replay={tmp_path / 'faults.jsonl'}", f"--folder={place}"]
    done = CliRunner().invoke(app, [*words, "--tries=30"])
    assert done.exit_code == 1, done.output
    assert "step 9: lost" in done.output
    shortest = load_schedule(place / "shortest.jsonl", USUAL)
    assert {planned.kind for planned in shortest} == GUILTY
    assert "2 faults fail as well" in done.output
    assert len(played) > 2
    assert all((folder / "result.json").exists() for folder in played)


def test_a_campaign_that_goes_well_is_played_once(tmp_path: Path, played: list[Path]) -> None:
    save_schedule(tmp_path / "faults.jsonl", SCHEDULE[:3])
    words = ["campaign", f"--replay={tmp_path / 'faults.jsonl'}", f"--folder={tmp_path / 'c'}"]
    assert CliRunner().invoke(app, [*words, "--tries=30"]).exit_code == 0
    assert len(played) == 1
