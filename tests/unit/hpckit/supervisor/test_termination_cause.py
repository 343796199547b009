"""Whether the time of a job is up."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.slurm.allocation import Allocation
from hpckit.supervisor.termination_cause import is_time_up, shows_time_limit
from tests.unit.hpckit.specs_and_processes import make_spec

JOB = Allocation("7_0", ("n1",))
NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("facts", "is_up"),
    [
        ("Reason=None EndTime=1000120 PreemptTime=None", True),
        ("Reason=None EndTime=1000209 PreemptTime=None", True),
        ("Reason=None EndTime=1000211 PreemptTime=None", False),
        ("Reason=None EndTime=999990 PreemptTime=None", True),
        ("Reason=None EndTime=1000020 PreemptTime=999999", False),
        ("Reason=TimeLimit EndTime=Unknown PreemptTime=None", True),
        ("Reason=None EndTime=Unknown", False),
        ("Reason=None TimeLimit=01:00:00 StartTime=996500 EndTime=1000100 PreemptTime=None", True),
        # suspended for a while
        ("Reason=None TimeLimit=01:00:00 StartTime=990000 EndTime=1000100 PreemptTime=None", True),
        # preempted, and being requeued
        ("Reason=None TimeLimit=365-00:00:00 StartTime=996500 EndTime=999999", False),
        ("Reason=None TimeLimit=01:00:00 StartTime=Unknown EndTime=999999 PreemptTime=None", True),
        # set by scontrol for a job without a limit
        ("Reason=None TimeLimit=2982251-04:18:00 StartTime=996500 EndTime=1000090", True),
        ("Reason=None TimeLimit=UNLIMITED StartTime=996500 EndTime=999999", False),
        ("", False),
    ],
)
def test_the_end_is_near_and_no_preemption_is_the_cause(facts: str, is_up: bool) -> None:
    shown = f"JobId=7 JobName=a JobState=RUNNING {facts}"
    assert shows_time_limit(shown, 120, NOW) is is_up


def test_slurm_is_asked_and_where_it_is_silent_what_it_said_at_first_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make_spec(cluster="slurm").cluster
    scontrol = tmp_path / "scontrol"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    asked = '[ "$* $SLURM_TIME_FORMAT" = "--oneliner show job 7_0 %s" ]'
    scontrol.write_text(f"#!/bin/sh\n{asked} && echo EndTime=$(($(date +%s) + 100))\n")
    scontrol.chmod(0o755)
    assert is_time_up(JOB, cluster)
    assert not is_time_up(None, cluster)
    assert not is_time_up(JOB, make_spec().cluster)
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    assert not is_time_up(JOB, cluster)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1000")
    assert is_time_up(JOB, cluster)
