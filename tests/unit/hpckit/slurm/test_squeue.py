"""Jobs as squeue reports them: those of a run, among jobs of any form.

The sample of 22.05 was made with slurm/devcluster; the addresses of the others are beside them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.events.schema import event_of
from hpckit.rundir.directory import RunDir
from hpckit.slurm.squeue import QueueError, includes, jobs_of, numbers_of, parse_queue, queue
from tests.unit.hpckit.slurm.queue_output import fields, marked, stand_in

RUNNING = "1|RUNNING|1795287656|1826823656|365-00:00:00|2|low|n[1-2]|(null)|None|s-bad1d42b"
WAITING = "2|PENDING|N/A|N/A|UNLIMITED|2|low||singleton(unfulfilled)|Dependency|s-bad1d42b"
MARK = "@0a1b2c3d"


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


@pytest.mark.parametrize(
    "line",
    [
        "1|RUNNING",
        "no queue today",
        "CLUSTER: west",  # of squeue --clusters
        "squeue: error: slurm_load_jobs error",
        "JOBID|STATE|START_TIME|END_TIME|TIME_LIMIT|NODES|PARTITION|NODELIST|DEPENDENCY|REASON|NAME",
    ],
)
def test_what_is_no_job_is_left_out(line: str) -> None:
    assert parse_queue(f"{line}\n{RUNNING}\n") == parse_queue(RUNNING)


# What 22.05 shows of `sbatch --hold -N1 -J het : -N1 t.sh`, of an array with a step, and of a name
# and a comment with line breaks. Other people's tools have failed at the same forms with other
# releases: 57829110_[5-100] at github.com/amq92/simple_slurm/issues/44 (2025),
# 123456_[9201-10000%500] at github.com/ycrc/seff-array/issues/15, and lists cut into several ranges
# at github.com/TUM-DAML/seml/pull/28.
OTHERS = (
    fields("41+0", "het"),
    fields("41+1", "het"),
    fields("4_[0,2,4,6,8%3]", "t.sh"),
    fields("57829110_[5-100]", "array"),
    fields("123456_[9201-10000%500]", "array"),
    fields("4_[0,2,4,...]", "cut off"),
    fields("3", "a\nb|c 41|RUNNING", comment="x\ny|z"),
    fields("west:12", "of a federation"),
    fields("9", "", state="A_NEW_STATE", start="Fr 27. Nov 2026", nodes="2-4", limit="NOT_SET"),
    fields("", "", state=""),
)


def test_jobs_of_any_form_are_beside_the_runs() -> None:
    mine = fields("2", "s-bad1d42b", "RUNNING", start="1795287656", end="NONE")
    jobs = parse_queue(marked(MARK, *OTHERS[:5], mine, *OTHERS[5:]), MARK)
    (job,) = [job for job in jobs if job.name == "s-bad1d42b"]
    assert (job.number, job.state, job.start, job.end) == ("2", "RUNNING", 1795287656, None)
    by_number = {job.number: job for job in jobs}
    assert by_number["3"].name == "a\nb|c 41|RUNNING"
    assert by_number["3"].comment == "x\ny|z"
    unknown = by_number["9"]
    assert (unknown.is_unknown, unknown.is_over, unknown.start) == (True, False, None)
    assert unknown.nodes == 2
    assert "west:12" not in by_number
    assert "" not in by_number


@given(st.lists(st.text().filter(lambda text: "@" not in text)), st.text())
def test_no_text_between_the_jobs_changes_them(junk: list[str], name: str) -> None:
    jobs = (fields("2", "s-bad1d42b", "RUNNING"), fields("3", name.replace("@", "")))
    clean = parse_queue(marked(MARK, *jobs), MARK)
    pieces = [marked(MARK, job) for job in jobs]
    assert len(clean) == 2
    before = "".join(junk)
    assert parse_queue(before + "".join(pieces), MARK) == clean
    strange = (fields(text, text) for text in junk)
    found = parse_queue(pieces[0] + marked(MARK, *strange) + pieces[1], MARK)
    assert [job for job in found if job in clean][:1] == clean[:1]
    assert clean[1] in found


@given(st.text())
def test_any_state_is_waiting_active_over_or_unknown(state: str) -> None:
    (job,) = parse_queue(marked(MARK, fields("2", "a", state.replace("@", ""))), MARK)
    assert [job.is_waiting, job.is_active, job.is_over, job.is_unknown].count(True) == 1


# All base states and flags of slurm.h of 25.11, whose list contains those of 22.05 to 25.05
@pytest.mark.parametrize(
    ("kind", "states"),
    [
        ("is_waiting", "PENDING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT RESV_DEL_HOLD"),
        ("is_active", "RUNNING SUSPENDED CONFIGURING COMPLETING RESIZING SIGNALING STAGE_OUT"),
        ("is_active", "STOPPED POWER_UP_NODE"),
        ("is_waiting", "EXPEDITING"),
        ("is_over", "COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE"),
        ("is_over", "OUT_OF_MEMORY REVOKED LAUNCH_FAILED RECONFIG_FAIL"),
        ("is_unknown", "HIBERNATING MIGRATING"),
    ],
)
def test_states_that_slurm_has(kind: str, states: str) -> None:
    for state in states.split():
        (job,) = parse_queue(RUNNING.replace("RUNNING", state))
        assert getattr(job, kind), state
    (job,) = parse_queue(RUNNING.replace("RUNNING", "CANCELLED by 1000"))
    assert job.is_over


@pytest.mark.parametrize(
    ("shown", "number", "is_included"),
    [
        ("7", "7", True),
        ("7+0", "7", True),
        ("7+1", "7", False),
        ("7_3", "7_3", True),
        ("7_[0-9:2%3]", "7_4", True),
        ("7_[0-9:2%3]", "7_5", False),
        ("7_[1,4-6]", "7_5", True),
        ("7_[1,4-6]", "7_7", False),
        ("7_[1,4-6]", "8_5", False),
        ("7_[1,4,...]", "7_9", True),
        ("7_[1,4,...]", "7_2", False),
        ("7_[1,4-6]", "7", False),
    ],
)
def test_which_tasks_an_array_has(shown: str, number: str, is_included: bool) -> None:
    assert includes(shown, number) is is_included


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
    (job,) = jobs_of(run, numbers, parse_queue(lines[1].replace("2_10", "2_[0-12:2%2]")))
    assert job.number == "2_10"


def test_where_there_is_no_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(QueueError, match="squeue is not installed on this machine"):
        queue()


def test_squeue_is_asked_for_a_form_that_no_name_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, fields("41+1", "a|b"), fields("7", "mine", comment="hpckit:/runs/t"))
    monkeypatch.setenv("PATH", str(tmp_path))
    first, second = queue()
    assert (first.number, first.name) == ("41+1", "a|b")
    assert (second.number, second.comment) == ("7", "hpckit:/runs/t")
