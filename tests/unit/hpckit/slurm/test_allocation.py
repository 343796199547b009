"""What the supervisor asks of Slurm's commands, and what it makes of their answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpckit.slurm.allocation import (
    Allocation,
    allocation,
    is_cancelled,
    is_requeued,
    leave_array,
    leave_submitting_job,
    shows_user_cancel,
    srun,
    unset_variables,
)
from hpckit.slurm.scontrol import field


def commands(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment whose first commands are these."""
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def test_outside_of_a_job_there_is_no_allocation() -> None:
    with pytest.raises(RuntimeError, match="not in a Slurm job"):
        allocation({})


OTHER_ORDER = "JobId=7 JobName=lr=1 JobState=RUNNING UserId=u(1) GroupId=g(1) JobState=FAILED"


def test_the_name_of_a_job_is_not_taken_for_its_state() -> None:
    assert field(OTHER_ORDER, "JobState") == "FAILED"
    assert field(OTHER_ORDER.replace("lr=1 ", "a\nb "), "JobState") == "FAILED"
    assert field(OTHER_ORDER, "JobId") == "7"
    assert field(OTHER_ORDER, "Reason") is None
    assert field("NodeName=n1 State=DOWN* Reason=State=IDLE", "State") == "DOWN*"
    first, second = "JobId=1 HetJobId=1 JobName=het UserId=u(1) JobState=RUNNING", "JobId=2 JobName"
    assert field(f"{first}\n{second}=het UserId=u(1) JobState=PENDING", "JobState") == "RUNNING"


def test_the_nodes_are_named_by_slurm(tmp_path: Path) -> None:
    env = commands(tmp_path, scontrol='[ "$*" = "show hostnames n[1-2]" ] && printf "n1\\nn2\\n"')
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    assert allocation(env) == Allocation("7", ("n1", "n2"))


def test_a_task_of_an_array_goes_by_both_numbers_and_leaves_the_array(tmp_path: Path) -> None:
    env = commands(tmp_path, scontrol="echo n1")
    env |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    env |= {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_MAX": "3"}
    assert allocation(env).job == "7_0"
    leave_array(env)
    assert allocation(env).job == "7"
    assert not [name for name in env if "ARRAY" in name]


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        ("Restarts=0", set()),
        ("Restarts=2", {"SLURM_RESTART_COUNT"}),
        ("ArrayJobId=5 ArrayTaskId=1 Restarts=0", {"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"}),
    ],
)
def test_a_job_that_is_submitted_in_another_is_not_taken_for_that_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str, kept: set[str]
) -> None:
    outer = {"SLURM_RESTART_COUNT": "1", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "1"}
    monkeypatch.setenv("PATH", commands(tmp_path, scontrol=f"echo 'JobId=7 {facts}'")["PATH"])
    env = {"SLURM_JOB_ID": "7", **outer}
    leave_submitting_job(env)
    assert env.keys() - {"SLURM_JOB_ID"} == kept
    assert env.get("SLURM_RESTART_COUNT") in (None, "2")
    monkeypatch.setenv("PATH", commands(tmp_path, scontrol="exit 1")["PATH"])
    unknown = {"SLURM_JOB_ID": "7", **outer}
    leave_submitting_job(unknown)
    assert unknown == {"SLURM_JOB_ID": "7", **outer}, "Slurm has said nothing"


@pytest.mark.parametrize(
    ("facts", "own"),
    [
        ("Reservation=(null) Dependency=(null) TRES=cpu=2,mem=50M", set()),
        ("TresPerNode=gres:gpu:2", {"SLURM_GPUS_ON_NODE", "SLURM_GPUS"}),
        ("AllocTRES=cpu=1,gres/gpu=2 TresPerJob=gres/gpu:2", {"SLURM_GPUS_ON_NODE", "SLURM_GPUS"}),
        ("HetJobId=7 HetJobOffset=0 Reservation=r", {"SLURM_HET_SIZE", "SLURM_JOB_RESERVATION"}),
        ("Dependency=afterany:5(unfulfilled)", {"SLURM_JOB_DEPENDENCY"}),
    ],
)
def test_a_job_without_gpus_has_no_variables_of_the_gpus_of_another(
    facts: str, own: set[str]
) -> None:
    outer = {"SLURM_GPUS_ON_NODE", "SLURM_GPUS", "SLURM_HET_SIZE", "SLURM_JOB_RESERVATION"}
    env = dict.fromkeys({*outer, "SLURM_JOB_DEPENDENCY", "SLURM_CPUS_ON_NODE", "PATH"}, "2")
    text = f"JobId=7 JobName=gres/gpu HetJobId=9 UserId=u(1) {facts} Comment=TresPerNode=gres:gpu:1"
    assert env.keys() - unset_variables(text, env) == {"SLURM_CPUS_ON_NODE", "PATH", *own}


SHOWN = "JobId=7 JobName=a b UserId=u(1) {} TimeLimit=1-00:00:00 Comment=JobState=CANCELLED"


@pytest.mark.parametrize(
    ("facts", "by_a_person"),
    [
        ("JobState=COMPLETING Reason=None PreemptTime=None", True),
        ("JobState=CANCELLED Reason=None PreemptTime=None", True),
        ("JobState=COMPLETING Reason=None PreemptTime=2026-01-02T03:04:05", False),
        ("JobState=COMPLETING Reason=TimeLimit PreemptTime=None", False),
        ("JobState=NODE_FAIL Reason=NodeDown PreemptTime=None", False),
        ("JobState=RUNNING Reason=None PreemptTime=None", False),
        ("JobState=COMPLETING Reason=None Restarts=1", True),
        ("JobState=COMPLETING Reason=None Restarts=2", False),
        ("", False),
    ],
)
def test_only_a_job_that_a_person_ends_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: str, by_a_person: bool
) -> None:
    assert shows_user_cancel(SHOWN.format(facts), restarts=1) is by_a_person
    script = f"[ \"$*\" = '--oneliner show job 7' ] && echo '{SHOWN.format(facts)}'"
    monkeypatch.setenv("PATH", commands(tmp_path, scontrol=script)["PATH"])
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert is_cancelled("7") is by_a_person
    assert is_requeued("7") is ("Restarts=2" in facts)


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$"])
def test_a_controller_that_does_not_answer_is_no_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("PATH", commands(tmp_path, scontrol=script)["PATH"])
    assert not is_cancelled("7")
    assert not is_requeued("7")


def test_variables_reach_the_node_as_they_are() -> None:
    value = "/a b/$(id)'\"\n;,c"
    command = srun("n1", {"HPCKIT_RUN": value}, ["python", "-c", "pass"])
    at = command.index("env")
    done = subprocess.run(
        ["env", "-i", *command[at + 1 : at + 2], "/usr/bin/printenv", "HPCKIT_RUN"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{value}\n"
    assert "--nodelist=n1" in command[:at]
