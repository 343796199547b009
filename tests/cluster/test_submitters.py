"""Runs that are launched from inside of a job, and by a shell with variables of Slurm."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from hpckit.rundir.directory import RunDir
from tests.cluster.launched import SLURM, Launched
from tests.cluster.slurm import PATIENCE_S, Slurm, wait_for
from tests.integration.run.runs import ALONE, REPO, assert_same_run, command
from tests.unit.hpckit import slurm as unit_slurm

# Of a rank of torchrun and of mpiexec, of another run, and of a shell that likes its own columns
OTHERS = {
    **{"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "nowhere", "TORCHELASTIC_RUN_ID": "x"},
    **{"PET_MAX_RESTARTS": "no", "PMI_RANK": "3", "OMPI_COMM_WORLD_RANK": "3"},
    **{"HPCKIT_RUN": "/nowhere", "HPCKIT_NODE": "7", "HPCKIT_STORE_TOKEN": "x"},
    **{"SQUEUE_FORMAT": "%j", "SINFO_FORMAT": "%n", "SQUEUE_STATES": "RUNNING"},
    **{"SLURM_LABELIO": "1", "SLURM_STDOUTMODE": "lost", "SLURM_DISTRIBUTION": "arbitrary"},
    **{"SLURM_CONSTRAINT": "none", "SLURM_NTASKS_PER_GPU": "3", "CUDA_VISIBLE_DEVICES": "0,1"},
    **{"SLURM_TIME_FORMAT": "relative", "SRUN_EXPORT_ENV": "NONE", "SCANCEL_STATE": "RUNNING"},
    **{"SLURM_GPUS": "2", "SLURM_GPUS_PER_TASK": "1", "SLURM_OUTER": "1"},
}
MANUAL = Path(unit_slurm.__file__).with_name("manual_variables.yaml")
"""Every variable of Slurm's manual pages."""
REFUSED = {"SLURM_CONF", "SLURM_CLUSTERS"}
"""The controller, and a variable that refuses the launch."""
FOREIGN = "of-another"
LEFT_OUT = {name for name in OTHERS if name.startswith(("S", "P", "O"))}
"""Those that no part of the run sets for itself."""


def inner(root: Path, shards: Path, *overrides: str) -> list[str]:
    """The command of a run that writes down the environment of its workers."""
    words = ("entry=tests.cluster.telling:main", f"user_config.environment={root}")
    return command(root / "runs", shards, *SLURM, *words, *overrides)


def worker(root: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((root / "rank0.json").read_text())
    return found


@pytest.mark.parametrize("where", ["allocation", "step"])
def test_a_run_that_is_launched_in_a_job_has_nothing_of_that_job(
    ports: Slurm, tmp_path: Path, shards: Path, reference: RunDir, where: str
) -> None:
    """The job has GPUs per task and two tasks, which a step of one agent cannot have."""
    words = shlex.join(inner(tmp_path, shards))
    named = (names.split() for names in yaml.safe_load(MANUAL.read_text()).values())
    every = {name for names in named for name in names if not name.startswith("SBATCH_")}
    set_by_outer = dict.fromkeys(every - REFUSED, FOREIGN) | OTHERS
    others = shlex.join(f"{name}={value}" for name, value in set_by_outer.items())
    size = ("--nodes=1", "--ntasks=2", "--gpus=2", "--gpus-per-task=1", "--mem=300")
    if where == "allocation":
        script = f"export {others}; echo $SLURM_JOB_ID; {words} >&2"
        outer = ports.run("salloc", *size, "bash", "-c", script, cwd=REPO, within_s=PATIENCE_S)
    else:
        script = f"cd {REPO}; srun --ntasks=1 --overlap {words}"
        outer = ports.submit(script, tmp_path / "outer.log", *size)
    wait_for(lambda: next((tmp_path / "runs").glob("t-*"), None) is not None, "a run", PATIENCE_S)
    it = Launched(ports, RunDir(next((tmp_path / "runs").glob("t-*"))))
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert_same_run(it.run, reference)
    assert it.verdicts() == ["done"]
    assert it.events("node_lost") == it.events("degraded") == []
    there = worker(tmp_path)
    assert there["SLURM_JOB_ID"] == it.events("run_started")[0]["job"] != outer.strip()
    assert [name for name, value in there.items() if FOREIGN in value] == []
    assert not {"SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"} & there.keys()
    assert not {"SLURM_GPUS", "SLURM_GPUS_PER_TASK", *LEFT_OUT} & there.keys()
    assert (there["WORLD_SIZE"], there["MASTER_ADDR"]) != ("4", "nowhere")


def test_requests_of_the_job_itself_do_not_reach_its_agents_steps(
    ports: Slurm, tmp_path: Path, shards: Path
) -> None:
    """Options of sbatch that name tasks are variables of the job, which srun takes for its own."""
    options = "{ntasks-per-gpu: 1, gpus: 2, distribution: cyclic}"
    words = inner(tmp_path, shards, *ALONE, f"cluster.slurm.options={options}")
    ports.run(*words, cwd=REPO, within_s=PATIENCE_S)
    it = Launched(ports, RunDir(next((tmp_path / "runs").glob("t-*"))))
    assert it.wait_for("run_ended")["verdict"] == "done"
    it.wait_until_over()
    assert worker(tmp_path)["SLURM_NTASKS_PER_GPU"] == "1"
    assert worker(tmp_path)["SLURM_GPUS"] == "2"


def test_a_job_is_what_the_dry_run_shows_whatever_the_shell_sets_for_sbatch(
    ports: Slurm, tmp_path: Path, shards: Path
) -> None:
    shell = {
        **{"SBATCH_JOB_NAME": "dev", "SBATCH_TIMELIMIT": "5", "SBATCH_SIGNAL": "USR1@10"},
        **{"SBATCH_REQUEUE": "1", "SBATCH_MEM_PER_CPU": "1", "SBATCH_GRES": "gpu:4"},
        **{"SBATCH_PARTITION": "high", "SBATCH_OUTPUT": f"{tmp_path}/lost", "SBATCH_WAIT": "1"},
        **{"SBATCH_EXPORT": "NONE", "SBATCH_OPEN_MODE": "truncate", "SBATCH_ARRAY_INX": "0-3"},
    }
    env = os.environ | ports.cluster.env | shell
    words = command(tmp_path / "runs", shards, *SLURM, *ALONE)
    words += ["cluster.slurm.time_limit='00:10:00'", "cluster.slurm.options={hold: true}"]

    def launched(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words, *more], env=env, cwd=REPO, capture_output=True, text=True, timeout=PATIENCE_S
        )

    shown = launched("--dry-run")
    assert "#SBATCH --partition=high\n" in shown.stdout
    assert "note: cluster.slurm.partition is taken from SBATCH_PARTITION=high" in shown.stderr
    assert "note: SBATCH_JOB_NAME=dev has no effect: the job has the name of" in shown.stderr
    assert launched().returncode == 0
    run = RunDir(next((tmp_path / "runs").glob("t-*")))
    (number,) = Launched(ports, run).jobs()
    assert f"{shown.stdout.partition('#!')[2]}" == (
        (run.submitit / f"{number}_submission.sh").read_text().removeprefix("#!") + "\n"
    )
    job = ports.job(number)
    assert (job["JobName"], job["TimeLimit"]) == (run.name, "00:10:00")
    assert (job["Partition"], job["Requeue"], job["MinMemoryNode"]) == ("high", "0", "900M")
    assert job["StdOut"] == str(run.logs / f"batch-{number}.log")
    assert "TresPerNode" not in job
    again = launched()
    assert again.returncode == 2
    assert f"job {number} (PENDING) is in the queue already" in again.stderr
    ports.run("scancel", number)
    env["SLURM_CLUSTERS"] = "elsewhere"
    refused = launched("name=other")
    assert refused.returncode == 2
    assert "error: SLURM_CLUSTERS=elsewhere: hpckit would not find its jobs" in refused.stderr
