from __future__ import annotations

from pathlib import Path

import pytest

from hpckit.events.schema import event_of
from hpckit.rundir.directory import RunDir
from hpckit.slurm.squeue import QueueError, jobs_of, numbers_of, parse_queue, queue

RUNNING = "1|RUNNING|1795287656|1826823656|365-00:00:00|2|low|n[1-2]|(null)|None|s-bad1d42b"
WAITING = "2|PENDING|N/A|N/A|UNLIMITED|2|low||singleton(unfulfilled)|Dependency|s-bad1d42b"


def test_what_squeue_of_22_05_says() -> None:
    first, second = parse_queue(f"{RUNNING}\n{WAITING}\n")
    assert (first.number, first.state, first.hosts, first.dependency) == (
        "1",
        "RUNNING",
        "n[1-2]",
        "",
    )
    assert (first.start, first.end) == (1795287656, 1826823656)
    assert (first.is_active, first.is_waiting, first.is_over) == (True, False, False)
    assert (second.start, second.reason, second.is_waiting) == (None, "Dependency", True)


def test_a_reason_with_spaces_and_a_name_with_anything_are_read_whole() -> None:
    line = WAITING.replace("Dependency", "ReqNodeNotAvail, UnavailableNodes:n[1-3]")
    (job,) = parse_queue(line.replace("s-bad1d42b", "a | name"))
    assert job.reason == "ReqNodeNotAvail, UnavailableNodes:n[1-3]"
    assert job.name == "a | name"


@pytest.mark.parametrize("line", ["1|RUNNING", RUNNING.replace("|2|", "|two|"), "no queue today"])
def test_a_line_of_another_form_is_refused_and_shown(line: str) -> None:
    with pytest.raises(QueueError, match="cannot parse this line") as told:
        parse_queue(line)
    assert line in str(told.value)


def test_a_runs_jobs_have_its_number_and_its_name(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "s-bad1d42b")
    run.submitit.mkdir(parents=True)
    (run.submitit / "10_submitted.pkl").touch()
    (run.submitit / "10_submission.sh").touch()
    events = [
        event_of(1.0, "run_started", {"job": "2"}),
        event_of(2.0, "successor_queued", {"job": "11"}),
        event_of(3.0, "run_started", {}),
    ]
    numbers = numbers_of(run, events)
    assert numbers == ["2", "10", "11"]
    stranger = WAITING.replace("s-bad1d42b", "another").replace("2|", "11|", 1)
    jobs = parse_queue("\n".join([stranger, WAITING, RUNNING]))
    assert [job.number for job in jobs_of(run, numbers, jobs)] == ["2"]


def test_a_task_of_an_array_has_the_name_of_the_sweep(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "s-bad1d42b")
    numbers = numbers_of(run, [event_of(1.0, "task_queued", {"job": "2_10"})])
    assert numbers == ["2_10"]
    lines = [
        WAITING.replace("2|", f"2_{task}|", 1).replace("s-bad1d42b", name)
        for task, name in ((9, "s-sweep-001"), (10, "s-sweep-001"), (10, "ss-sweep-001"))
    ]
    (job,) = jobs_of(run, numbers, parse_queue("\n".join(lines)))
    assert (job.number, job.name) == ("2_10", "s-sweep-001")


def test_where_there_is_no_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(QueueError, match="squeue is not installed on this machine"):
        queue()
