"""Jobs of Slurm's queue that carry a run already."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.config.spec_error import NoAnswerError
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import EventLog
from hpckit.rundir.directory import RunDir
from hpckit.slurm.queued_jobs import (
    QueuedJob,
    of_run,
    others_than,
    queued,
    refuse_queued,
    waiting_for,
    waiting_problem,
)
from hpckit.slurm.squeue import QueueError, parse_queue
from tests.unit.hpckit.slurm.queue_output import fields, marked, stand_in

RUN = RunDir(Path("/runs/t-1a2b3c4d"))
SCRIPT = "/runs/t-1a2b3c4d/submitit/submission_file_1.sh"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"7|PENDING|t-1a2b3c4d|{SCRIPT}", ["7"]),
        ("7|PENDING|t-1a2b3c4d|/elsewhere/t-1a2b3c4d/submitit/submission_file_1.sh", []),
        (f"7|PENDING|other|{SCRIPT}", ["7"]),  # it was renamed
        (f"7|COMPLETED|t-1a2b3c4d|{SCRIPT}", []),
        (f"7|COMPLETING|t-1a2b3c4d|{SCRIPT}", []),
        (f"7|A_NEW_STATE|t-1a2b3c4d|{SCRIPT}", ["7"]),
        ("5|RUNNING|t-1a2b3c4d|(null)", ["5"]),  # its number is known
        ("6_0|PENDING|t-sweep-3|/sweeps/submission_file_1.sh", ["6_0"]),
        ("6_1|PENDING|t-sweep-3|/sweeps/submission_file_1.sh", []),
        ("5|PENDING|another|(null)", []),  # of a cluster that counts from 1 again
        ("nonsense", []),
    ],
)
def test_which_are_the_runs(line: str, found: list[str]) -> None:
    number, state, name, command = (*line.split("|"), "", "", "")[:4]
    job = fields(number, name, state, command=command)
    jobs = parse_queue(marked("@1", job), "@1")
    assert [job.number for job in of_run(RUN, ["5", "6_0"], jobs)] == found


@pytest.mark.parametrize(
    ("dependency", "others"),
    [
        ("afterany:7(unfulfilled)", ""),
        ("afterany:7(unfulfilled),afterok:5_2(failed)", "afterok:5_2"),
        ("afterany:6(unfulfilled),afterany:7,singleton(unfulfilled)", "afterany:6,singleton"),
        ("afterany:7_0(unfulfilled)", None),  # another job, of an array
        ("afterany:70(unfulfilled)", None),
        ("afterok:7(unfulfilled)", None),  # which is not of hpckit
        ("afterany:6(unfulfilled)?afterany:7(unfulfilled)", None),
        ("", None),
    ],
)
def test_a_dependency_without_that_on_the_former_job(dependency: str, others: str | None) -> None:
    assert others_than(dependency, "7") == others


@pytest.mark.parametrize(
    ("former", "found"),
    [
        (("7", "t-1a2b3c4d", "COMPLETING"), [("8", "")]),
        (("7", "t-1a2b3c4d", "CANCELLED"), [("8", "")]),
        (("7", "t-1a2b3c4d", "RUNNING"), []),
        (("7", "of-the-user", "RUNNING"), []),
        (("6", "unknown", "RUNNING"), []),
    ],
)
def test_only_jobs_of_the_run_are_let_go_once_the_former_one_ends(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    former: tuple[str, str, str],
    found: list[tuple[str, str]],
) -> None:
    run = RunDir(tmp_path / "t-1a2b3c4d")
    run.path.mkdir()
    with EventLog(run.events) as events:
        events.emit_kind("successor_queued", job="7")
        events.emit_kind("successor_queued", job="8")
    after = "afterany:7(unfulfilled)"
    stand_in(
        tmp_path,
        fields(*former),
        fields("8", "t-1a2b3c4d", dependency=after),
        fields("9", "plots", dependency=after, command="/home/me/plots.sh"),
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert waiting_for(run, "7") == found


def test_what_to_do_is_told() -> None:
    assert waiting_problem(RUN, []) is None
    one = waiting_problem(RUN, [QueuedJob("7", "PENDING")])
    two = waiting_problem(RUN, [QueuedJob("7", "PENDING"), QueuedJob("8", "RUNNING")])
    assert one is not None
    assert one.startswith("t-1a2b3c4d: job 7 (PENDING) is in the queue already")
    assert two is not None
    assert "jobs 7 (PENDING), 8 (RUNNING) are in the queue" in two
    for command in (f"hpckit status {RUN.path}", f"hpckit cancel {RUN.path}", "--fresh"):
        assert command in one


def test_slurm_is_asked_by_its_own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDir(tmp_path / "t-1a2b3c4d")
    run.path.mkdir()
    with EventLog(run.events) as events:
        events.emit_kind("successor_queued", job="8")
    tool = tmp_path / "squeue"
    stand_in(tmp_path, fields("8", run.name), fields("9", run.name), fields("7+1", "het"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert queued(run) == [QueuedJob("8", "PENDING")]
    refuse_queued([RunDir(tmp_path / "t-00000000")])
    with pytest.raises(SpecError, match=r"job 8 \(PENDING\) is in the queue already"):
        refuse_queued([RunDir(tmp_path / "t-00000000"), run])
    tool.write_text("#!/bin/sh\necho squeue: error: no controller >&2\nexit 1\n")
    with pytest.raises(QueueError, match="no controller"):
        queued(run)
    with pytest.raises(
        NoAnswerError,
        match="no controller; nothing is submitted, because it is unknown whether a job "
        "of t-1a2b3c4d is",
    ):
        refuse_queued([run])
    tool.unlink()
    with pytest.raises(QueueError, match="squeue"):
        queued(run)
