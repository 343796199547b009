"""The end of a job with expedited requeues; Slurm is played by a program, by its documents."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpckit.events.event_log import EventLog, read_events
from hpckit.rundir.directory import RunDir
from hpckit.supervisor.continuation.next_job import JobRequeue
from tests.unit.hpckit.specs_and_processes import make_spec

SHOWN = "JobId=7 JobName=t UserId=u(1) JobState=RUNNING Requeue=1 Restarts=0"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The words of scontrol, a line for each call that changes something."""
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(
        f'#!/bin/sh\ncase "$*" in\n*"show job"*) cat {tmp_path}/shown ;;\n"show "*) ;;\n'
        f'*) echo "$@" >> {tmp_path}/asked; [ ! -e {tmp_path}/refuses ] ;;\nesac\n'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scontrol.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (tmp_path / "asked").touch()
    return tmp_path / "asked"


@pytest.mark.parametrize(
    ("is_expedited", "is_final", "how", "words"),
    [
        (True, True, "expedite", ["update JobId=7 Requeue=0"]),
        (True, True, "requeue", ["update JobId=7 Requeue=0"]),
        (True, True, "chain", []),  # submitted with --no-requeue
        (False, True, "requeue", []),
        (True, False, "expedite", ["requeue 7"]),
        (False, False, "requeue", ["requeue 7", "update JobId=7 StartTime=now+20"]),
    ],
)
def test_what_is_asked_of_slurm_at_the_end_of_a_job(
    tmp_path: Path, asked: Path, is_expedited: bool, is_final: bool, how: str, words: list[str]
) -> None:
    (tmp_path / "shown").write_text(SHOWN + " ExpeditedRequeue=Yes" * is_expedited)
    run, spec = RunDir(tmp_path), make_spec({"launch.continuation": how}, "slurm")
    with EventLog(run.events) as events, JobRequeue(run, spec, events, "7") as requeue:
        if not is_final:
            requeue.request("7")
    assert asked.read_text().splitlines() == words


def test_a_job_that_may_stay_held_is_reported(tmp_path: Path, asked: Path) -> None:
    (tmp_path / "shown").write_text(f"{SHOWN} ExpeditedRequeue=Yes")
    (tmp_path / "refuses").touch()
    run, spec = RunDir(tmp_path), make_spec({"launch.continuation": "expedite"}, "slurm")
    with EventLog(run.events) as events, JobRequeue(run, spec, events, "7"):
        pass
    (event,) = [one for one in read_events(run.events) if one.kind == "degraded"]
    assert event["what"].startswith("job 7 may be left in the queue (REQUEUE_HOLD); scancel 7")
