"""The jobs of evaluations: what sbatch gets, and by what they are found and told from the run's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hpckit.evaluation.evaluation_jobs import (
    evaluated_by,
    evaluation_comment,
    evaluation_script,
    evaluations_of,
    job_fields,
    queued_evaluations,
)
from hpckit.rundir.directory import RunDir
from hpckit.slurm.squeue import SlurmJob, jobs_of
from tests.unit.hpckit.evaluation.evaluation_events import id_of
from tests.unit.hpckit.specs_and_processes import make_spec

RUN = RunDir(Path("/runs/a b-1a2b3c4d"))
ONE, TWO = id_of(10), id_of(20)


def job(number: str, comment: str, state: str = "PENDING", name: str = "j") -> SlurmJob:
    return SlurmJob(
        number=number,
        state=state,
        start=None,
        end=None,
        limit="1:00:00",
        nodes=1,
        partition="low",
        hosts="",
        dependency="",
        reason="Priority",
        name=name,
        comment=comment,
    )


def flags(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if "#SBATCH" in line]
    return {line.partition("=")[0]: line.partition("=")[2] for line in lines}


def test_a_job_has_what_the_run_has_unless_evaluations_have_their_own() -> None:
    changes = {
        "cluster.slurm.partition": "gpu",
        "cluster.slurm.account": "p200",
        "cluster.slurm.setup": ["module load cuda"],
        "cluster.device": "cuda",
        "eval.slurm.partition": "low",
        "eval.slurm.options": {"mail-type": "FAIL", "requeue": True},
        "eval.time_limit": "00:30:00",
        "eval.nproc_per_node": 2,
    }
    del changes["eval.slurm.options"]
    spec = make_spec({**changes, "eval.slurm.options": {"mail-type": "FAIL"}}, "slurm")
    script = evaluation_script(spec, RUN, 3, [ONE], 4)
    found = flags(script)
    assert (found["partition"], found["account"]) == ("low", "p200")
    assert (found["time"], found["nice"], found["nodes"]) == ("00:30:00", "1000", "1")
    assert found["requeue"] == "", "a preempted one runs again"
    assert found["mail-type"] == "FAIL"
    assert found["gpus-per-node"] == "2"
    assert "array" not in found
    assert "module load cuda" in script
    *_, last = script.splitlines()
    assert last.endswith(f"evaluation_job '{RUN.path}' 3 {ONE}")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_several_are_an_array_of_which_some_run_at_the_same_time() -> None:
    script = evaluation_script(make_spec({}, "slurm"), RUN, 1, [ONE, TWO], 4)
    assert flags(script)["array"] == "0-1%4"
    assert script.rstrip().endswith(f"{ONE} {TWO}")
    env = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "9"}
    assert job_fields(env) == {"job": "7_1"}
    assert job_fields({"SLURM_JOB_ID": "9"}) == {"job": "9"}
    assert job_fields({}) == {}


def test_jobs_are_found_by_their_comment_and_are_none_of_the_run() -> None:
    comment = evaluation_comment(RUN.path, [ONE, TWO])
    assert evaluations_of(comment, RUN.path) == [ONE, TWO]
    assert evaluations_of(comment, Path("/runs/a")) == []
    assert evaluations_of(f"hpckit:{RUN.path}", RUN.path) == []
    single = evaluation_comment(RUN.path, [ONE])
    jobs = [
        job("5", single, name=RUN.name),
        job("7_[0-1]", comment),
        job("8", f"hpckit:{RUN.path}", name=RUN.name),
    ]
    assert queued_evaluations(jobs[:1], RUN) == {ONE: "5"}
    assert queued_evaluations(jobs[1:], RUN) == {ONE: "7_0", TWO: "7_1"}
    assert queued_evaluations([job("7_1", comment)], RUN) == {TWO: "7_1"}
    assert queued_evaluations([job("5", single, "CANCELLED")], RUN) == {}
    assert [one.number for one in jobs_of(RUN, ["8"], jobs)] == ["8"]


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        (["python", "-m", "hpckit.evaluation.evaluation_job", str(RUN.path), "1", ONE, TWO], 2),
        (
            [
                "python",
                "-m",
                "hpckit.evaluation.evaluation_job",
                "--background",
                str(RUN.path),
                "1",
            ],
            0,
        ),
        (["python", "-m", "hpckit.evaluation.evaluation_job", "/runs/other", "1", ONE], 0),
        (["vim", "evaluation_job.py", str(RUN.path), "1", ONE], 0),
        ([], 0),
    ],
)
def test_a_process_is_known_by_its_command_line(words: list[str], ids: int) -> None:
    assert list(evaluated_by(words, RUN)) == [ONE, TWO][:ids]
