"""A supervisor that begins while another one holds the run."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.events.schema import event_of
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import RunHeldError, RunLock
from hpckit.supervisor.continuation.predecessor_job import (
    end_before,
    former_job,
    hold_after,
    is_given_up,
    is_needless,
)
from tests.unit.hpckit.specs_and_processes import line_of, python

HOLD = """
import sys; from pathlib import Path; from hpckit.rundir.lock import RunLock
with RunLock(Path(sys.argv[1]), "job 1"):
    print("held", flush=True); sys.stdin.readline()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of `tmp_path` until it is told something."""
    with python(HOLD, tmp_path / "lock") as process:
        assert line_of(process) == "held"
        yield process


def test_one_that_is_ending_is_waited_for(tmp_path: Path, held: subprocess.Popen[str]) -> None:
    asked: list[str] = []

    def is_ending(error: RunHeldError) -> bool:
        asked.append(str(error))
        threading.Timer(2.5, held.kill).start()
        return True

    with hold_after([tmp_path / "lock"], "job 2", is_ending):
        held.wait()
        with pytest.raises(RunHeldError, match="job 2"), RunLock(tmp_path / "lock", "3", 0.0):
            pass
    assert len(asked) == 1
    assert "in use by job 1" in asked[0]


def test_one_that_is_not_refuses_at_once(tmp_path: Path, held: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(RunHeldError, match="in use by job 1"),
        hold_after([tmp_path / "lock"], "job 2", lambda error: False, patience_s=3600.0),
    ):
        pass
    assert held.poll() is None


def test_one_that_does_not_end_refuses_in_the_end(
    tmp_path: Path, held: subprocess.Popen[str]
) -> None:
    with (
        pytest.raises(RunHeldError, match="in use by job 1"),
        hold_after([tmp_path / "lock"], "job 2", lambda error: True, patience_s=0.2),
    ):
        pass
    assert held.poll() is None


def test_a_run_that_nobody_holds_asks_nobody(tmp_path: Path) -> None:
    with hold_after([tmp_path / "lock"], "job 2", lambda error: pytest.fail("asked")):
        pass


def test_the_former_job_is_the_one_that_began_last() -> None:
    assert former_job([]) is None
    began = [event_of(1.0, "run_started", {"job": job}) for job in ("1", "7_0")]
    assert former_job([*began, event_of(2.0, "step", {"step": 1})]) == "7_0"
    assert former_job([*began, event_of(3.0, "run_started", {})]) is None, "it was in none"


def test_what_slurm_gives_up() -> None:
    def ask(job: str) -> str:
        if job == "9":
            raise subprocess.CalledProcessError(1, "scontrol")
        return f"JobId={job} JobState={states[job]} Reason=None"

    states = {"1": "RUNNING", "2": "COMPLETING", "3": "CANCELLED", "4": "NODE_FAIL"}
    assert {job: is_given_up(job, "5", ask) for job in (*states, "9")} == {
        "1": False,
        **dict.fromkeys(("2", "3", "4", "9"), True),
    }
    assert is_given_up("5", "5", ask), "it was requeued"
    assert not is_given_up(None, "5", ask), "that one is none of Slurm's"


def test_slurm_is_asked_by_its_own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "scontrol"
    tool.write_text('#!/bin/sh\necho "JobId=$4 JobState=RUNNING"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert not is_given_up("1", "2")
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert is_given_up("1", "2")


Told = tuple[str, dict[str, Any]]


def story(*told: Told) -> list[Event]:
    return [event_of(float(at), kind, fields) for at, (kind, fields) in enumerate(told)]


BEGUN: Told = ("run_started", {"job": "7"})
NEXT: Told = ("successor_queued", {"job": "8"})
GENERATION: Told = ("generation_started", {"generation": 1})


def ended(verdict: str, final: bool) -> Told:
    return ("generation_ended", {"verdict": verdict, "final": final})


@pytest.mark.parametrize(
    ("told", "how"),
    [
        ([GENERATION], None),  # it was killed
        ([GENERATION, ended("preempted", False)], None),
        ([GENERATION, ended("infra", True)], "infra"),
        ([GENERATION, ended("infra", False), GENERATION, ended("done", True)], "done"),
        ([GENERATION, ("asked", {"request": "preempt"})], None),
        ([GENERATION, ("asked", {"request": "stop"})], "stopped"),  # and then killed
        ([GENERATION, ended("infra", False), ("run_ended", {"verdict": "stopped"})], "stopped"),
        ([GENERATION, ended("infra", False), ("run_ended", {"verdict": "infra"})], None),
    ],
)
def test_a_successor_is_needless_once_the_run_has_ended_for_good(
    told: list[Told], how: str | None
) -> None:
    assert end_before(story(BEGUN, NEXT, *told), "8") == how
    assert end_before(story(BEGUN, NEXT, *told), "9") is None, "a person has started that one"
    again = story(
        BEGUN, NEXT, *told, ("run_started", {"job": "9"}), ("successor_queued", {"job": "10"})
    )
    assert end_before(again, "10") is None, "since a person has started the run again"


def test_it_says_so(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with EventLog(run.events) as events:
        for kind, fields in (BEGUN, NEXT, GENERATION, ended("done", True)):
            events.emit_kind(kind, **fields)
        assert not is_needless(run, None, events)
        assert not is_needless(run, "9", events)
        assert is_needless(run, "8", events)
    told, cancelled = read_events(run.events)[-2:]
    assert "(done)" in told["what"]
    assert (cancelled.kind, cancelled["job"]) == ("successor_cancelled", "8")
