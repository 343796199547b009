"""Submits evaluations: as jobs of low priority on Slurm, or as a process of low priority on this
machine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from hpckit.config.rules.violations import most_nodes
from hpckit.config.spec import RunSpec, SlurmSpec
from hpckit.report.evaluation.evaluation_records import EvaluationRecord
from hpckit.rundir.directory import RunDir
from hpckit.rundir.requeue_link import snapshot_variables
from hpckit.slurm.environment import environment_for
from hpckit.slurm.sbatch_answers import submitted_job
from hpckit.slurm.squeue import SlurmJob, includes, queue
from hpckit.submit.batch_script import gpu_options

MODULE = "hpckit.evaluation.evaluation_job"
_SUBMIT_S = 60.0
"""Seconds after which a call of sbatch is given up."""
_COMMENT = "hpckit-eval:"


class EvaluationSubmitError(RuntimeError):
    """Raised if an evaluation cannot be submitted now; the message says why."""


class EvaluationQueue(Protocol):
    """Where evaluations are submitted."""

    def submit(self, evaluations: Sequence[EvaluationRecord]) -> list[dict[str, Any]]:
        """Submits evaluations, and returns for each the job or the process as fields of an event.

        Raises:
            EvaluationSubmitError: none was submitted, as far as is known.
        """

    def find(self) -> dict[str, dict[str, Any]]:
        """Returns the evaluations of the run that are submitted, by the ids of their checkpoints,
        with the fields of an event. A former supervisor may have had no time to record one.

        Raises:
            QueueError: Slurm does not answer.
        """

    def alive(self, evaluations: Sequence[EvaluationRecord]) -> Collection[str]:
        """Returns the ids of those of these evaluations whose last submission still exists.

        Raises:
            QueueError: Slurm does not answer.
        """


def evaluation_comment(run: Path, ids: Sequence[str]) -> str:
    """Returns the comment by which the job of evaluations is found. It is none of a run's job."""
    return f"{_COMMENT}{run}@{','.join(ids)}"


def evaluations_of(comment: str, run: Path) -> list[str]:
    """Returns the ids of the checkpoints of `run` that a job with this comment evaluates."""
    head, at, ids = comment.rpartition("@")
    return ids.split(",") if at and head == f"{_COMMENT}{run}" else []


def evaluation_script(
    spec: RunSpec, run: RunDir, submission: int, ids: Sequence[str], limit: int
) -> str:
    """Returns the input of sbatch for the evaluation of checkpoints; of several, each is a task of
    an array. Pure.

    Args:
        limit: tasks that may run at the same time.
    """
    code = shlex.quote(str(run.code(submission)))
    assert spec.cluster.slurm is not None  # the spec is valid
    words = [spec.cluster.slurm.python or sys.executable, "-u", "-m", MODULE]
    words += [str(run.path), str(submission), *ids]
    flags = _flags(spec, run, ids, limit)
    return "\n".join(
        (
            "#!/bin/bash",
            *(f"#SBATCH --{key}{_value(flags[key])}" for key in sorted(flags)),
            *spec.cluster.slurm.setup,
            f'export PYTHONPATH={code}"${{PYTHONPATH:+:$PYTHONPATH}}"',
            "export PYTHONSAFEPATH=1",
            f"exec {shlex.join(words)}",
            "",
        )
    )


def _flags(spec: RunSpec, run: RunDir, ids: Sequence[str], limit: int) -> dict[str, Any]:
    slurm, own = spec.cluster.slurm, spec.eval.slurm
    assert slurm is not None  # the spec is valid
    wanted = {
        "job-name": f"{run.name}-eval",
        "comment": evaluation_comment(run.path, ids),
        "output": str(run.evaluations / "job-%j.log"),
        "nodes": 1,
        "ntasks": 1,
        "time": spec.eval.time_limit,
        "partition": own.partition or slurm.partition,
        "account": own.account or slurm.account,
        "qos": own.qos or slurm.qos,
        "constraint": own.constraint or slurm.constraint,
        "exclude": ",".join(slurm.exclude) or None,
        "cpus-per-task": own.cpus_per_node or slurm.cpus_per_node,
        "mem": own.memory or slurm.memory,
        "nice": own.nice,
        "requeue": True,  # a preempted one starts again
        "open-mode": "append",
        "array": f"0-{len(ids) - 1}%{limit}" if len(ids) > 1 else None,
        **_gpu_flags(spec, slurm),
        **own.options,
    }
    return {key: value for key, value in wanted.items() if value is not None and value is not False}


def _gpu_flags(spec: RunSpec, slurm: SlurmSpec) -> dict[str, Any]:
    if spec.cluster.device == "cpu":
        return {}
    found = gpu_options(slurm, spec.eval.nproc_per_node)
    return {key.replace("_", "-"): value for key, value in found.items()}


def _value(value: Any) -> str:
    return "" if value is True else f"={shlex.quote(str(value))}"


@dataclass(frozen=True)
class SlurmEvaluations:
    """Evaluations as jobs of Slurm."""

    run: RunDir
    submission: int
    spec: RunSpec

    def submit(self, evaluations: Sequence[EvaluationRecord]) -> list[dict[str, Any]]:
        ids = [one.id for one in evaluations]
        limit = self.spec.eval.max_pending
        script = evaluation_script(self.spec, self.run, self.submission, ids, limit)
        assert self.spec.cluster.slurm is not None  # the spec is valid
        passed = self.spec.cluster.slurm.pass_environment
        self.run.evaluations.mkdir(exist_ok=True)
        try:
            done = subprocess.run(
                ["sbatch"],
                input=script,
                env=environment_for("submission", os.environ, passed),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SUBMIT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise EvaluationSubmitError(f"sbatch: {error}") from error
        if done.returncode or (job := submitted_job(done.stdout)) is None:
            words = " ".join((done.stderr.strip() or done.stdout.strip()).split())
            raise EvaluationSubmitError(words or f"sbatch: exit status {done.returncode}")
        return [{"job": job}] if len(ids) == 1 else [{"job": f"{job}_{i}"} for i in range(len(ids))]

    def find(self) -> dict[str, dict[str, Any]]:
        return {id_: {"job": job} for id_, job in queued_evaluations(queue(), self.run).items()}

    def alive(self, evaluations: Sequence[EvaluationRecord]) -> Collection[str]:
        return self.find().keys()


def queued_evaluations(jobs: Sequence[SlurmJob], run: RunDir) -> dict[str, str]:
    """Returns the numbers of the jobs that evaluate checkpoints of a run, by the ids of these.
    Pure."""
    found = {}
    for job in jobs:
        ids = [] if job.is_over else evaluations_of(job.comment, run.path)
        array = job.number.partition("_")[0]
        for number, id_ in enumerate(ids):
            mine = f"{array}_{number}" if len(ids) > 1 else job.number
            if includes(job.number, mine):
                found[id_] = mine
    return found


@dataclass
class LocalEvaluations:
    """Evaluations as processes on this machine, one at a time, which outlive the supervisor."""

    run: RunDir
    submission: int
    spec: RunSpec
    gpus: tuple[str, ...]
    """The GPUs of this machine."""
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def submit(self, evaluations: Sequence[EvaluationRecord]) -> list[dict[str, Any]]:
        ids = [one.id for one in evaluations]
        code = self.run.code(self.submission)
        command = [sys.executable, "-u", "-m", MODULE, "--background"]
        command += [str(self.run.path), str(self.submission), *ids]
        env = environment_for("submission", os.environ)
        env |= snapshot_variables(code, env) | {"CUDA_VISIBLE_DEVICES": self._free_gpus()}
        self.run.evaluations.mkdir(exist_ok=True)
        try:
            with open(self.run.evaluations / "processes.log", "ab") as log:
                process = subprocess.Popen(
                    command,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise EvaluationSubmitError(str(error)) from error
        self._started.append(process)
        return [{"pid": process.pid} for _ in ids]

    def find(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for pid in psutil.pids():
            for id_ in evaluated_by(_words_of(pid), self.run):
                found[id_] = {"pid": pid}
        return found

    def alive(self, evaluations: Sequence[EvaluationRecord]) -> Collection[str]:
        self._started = [one for one in self._started if one.poll() is None]  # reaps the others
        pids = {one.id: one.submitted[-1].pid for one in evaluations if one.submitted}
        return {id_ for id_, pid in pids.items() if id_ in evaluated_by(_words_of(pid), self.run)}

    def _free_gpus(self) -> str:
        """Returns the GPUs that the run does not use; without any, evaluations use the CPU."""
        if self.spec.cluster.device == "cpu":
            return ""
        used = most_nodes(self.spec) * self.spec.launch.nproc_per_node
        return ",".join(self.gpus[used:][: self.spec.eval.nproc_per_node])


def _words_of(pid: int | None) -> list[str]:
    """Returns the command line of a process of this user, or nothing if there is none."""
    try:
        process = psutil.Process(pid)
        return process.cmdline() if process.uids().real == os.getuid() else []
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return []


def evaluated_by(words: Sequence[str], run: RunDir) -> Collection[str]:
    """Returns the ids of the checkpoints of `run` that the process with this command line
    evaluates. Pure."""
    if MODULE not in words:
        return ()
    rest = [word for word in words[words.index(MODULE) + 1 :] if not word.startswith("-")]
    return rest[2:] if rest[:1] == [str(run.path)] else ()


def open_queue(
    run: RunDir, submission: int, spec: RunSpec, gpus: tuple[str, ...]
) -> EvaluationQueue:
    """Returns where evaluations of a run are submitted."""
    if spec.cluster.kind == "slurm":
        return SlurmEvaluations(run, submission, spec)
    return LocalEvaluations(run, submission, spec, gpus)


def job_fields(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the number of the Slurm job of this process as fields of an event, if it is in
    one that was submitted for evaluations."""
    job, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    if job is not None and task is not None:
        return {"job": f"{job}_{task}"}
    return {"job": env["SLURM_JOB_ID"]} if "SLURM_JOB_ID" in env else {}
