"""The batch script of a submission, as a pure function of the spec."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpckit.config.rules.violations import fewest_nodes, is_elastic, most_nodes
from hpckit.config.spec import RunSpec, SlurmSpec
from hpckit.rundir.code_snapshot.module_names import SIGNAL_HOLD, module_in
from hpckit.rundir.directory import RunDir
from hpckit.slurm.job_ownership import job_comment
from hpckit.submit.signal_hold import IGNORED
from hpckit.text.slurm_times import limit_seconds

_NO_FLAGS = {"setup", "additional_parameters", "array_parallelism", "stderr_to_stdout", "use_srun"}
MOST_TASKS = 1_000_000
"""The number of tasks of an array that may run concurrently if the spec sets none; submitit's
default is 256."""


@dataclass(frozen=True)
class BatchJob:
    """The properties of a job beside the requests of the spec."""

    name: str
    folder: Path
    """The folder of submitit's files."""
    output: Path
    """A pattern in which Slurm replaces numbers."""
    code: str
    """Path of the code snapshot, as a shell word."""
    comment: str | None = None
    """What the job says of itself, unless the spec sets a comment."""
    after: tuple[str, ...] = ()
    """Numbers of jobs that have to end before this one starts."""
    exclude: tuple[str, ...] = ()
    """Nodes to exclude, beside those of the spec."""
    hold: str = SIGNAL_HOLD
    """Name of the module in the snapshot that blocks signals until a supervisor handles them."""


def of_run(
    run: RunDir, submission: int, after: tuple[str, ...] = (), exclude: tuple[str, ...] = ()
) -> BatchJob:
    """Returns the job of one run.

    Args:
        after: the other jobs of the run, as a run has one job at a time. Their names say nothing:
            runs of other directories may have the same one.
        exclude: as in `BatchJob`.
    """
    return BatchJob(
        name=run.name,
        folder=run.submitit,
        output=run.logs / "batch-%j.log",
        code=shlex.quote(str(run.code(submission))),
        comment=job_comment(run.path),
        after=after,
        exclude=exclude,
        hold=module_in(run.code(submission), SIGNAL_HOLD),
    )


def script(spec: RunSpec, place: BatchJob, tasks: int | None = None) -> str:
    """Returns the exact input of `sbatch`.

    Args:
        tasks: the number of tasks of an array. None: no array.
    """
    words = interpreter(_slurm(spec), place)
    command = f"{words} -u -m submitit.core._submit {shlex.quote(str(place.folder))}"
    return render(command, parameters(spec, place), tasks)


def parameters(spec: RunSpec, place: BatchJob) -> dict[str, Any]:
    """Returns the arguments of submitit's Slurm executor.

    The supervisor is the batch process itself (`use_srun=False`, and `exec` in `interpreter`), as a
    shell would lose signals. With `B:`, Slurm signals it and not the steps. Signals stay pending
    until it handles them (`hold`), and do not end set-up lines.
    """
    slurm = _slurm(spec)
    wanted = {
        "job_name": place.name,
        "nodes": most_nodes(spec),
        "time": minutes(slurm.time_limit) if slurm.time_limit else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "exclude": ",".join((*slurm.exclude, *place.exclude)) or None,
        "cpus_per_task": slurm.cpus_per_node,
        "mem": slurm.memory,
        "exclusive": slurm.exclusive or None,
        "setup": [IGNORED, *slurm.setup, *_exports(place.code)],
        "array_parallelism": spec.launch.max_parallel or MOST_TASKS,
        "stderr_to_stdout": True,
        "use_srun": False,
        "additional_parameters": _options(spec, place) | _elastic(spec),
        **(gpu_options(slurm, spec.launch.nproc_per_node) if spec.cluster.device != "cpu" else {}),
    }
    # submitit's defaults may not suit a site: five minutes, and its own workload key
    given = {key: value for key, value in wanted.items() if value is not None}
    return {"time": None, "wckey": None, **given}


def passed_variables(spec: RunSpec) -> tuple[str, ...]:
    """Returns the names of the variables that a job of the spec gets although they are the
    submitter's own, as in `hpckit.slurm.environment.environment_for`."""
    return _slurm(spec).pass_environment


def interpreter(slurm: SlurmSpec, place: BatchJob) -> str:
    """Returns the shell words that replace the shell by the program."""
    python = shlex.quote(slurm.python or sys.executable)
    return f"exec {python} -IS {place.code}/{place.hold.replace('.', '/')}.py"


def minutes(limit: str) -> int:
    """Returns the minutes of a time limit [D-]HH:MM:SS, rounded up."""
    return math.ceil(limit_seconds(limit) / 60)


def _slurm(spec: RunSpec) -> SlurmSpec:
    assert spec.cluster.slurm is not None  # the spec is valid
    return spec.cluster.slurm


def _elastic(spec: RunSpec) -> dict[str, Any]:
    """Returns options to get as many nodes as possible, if fewer are enough, and to survive the
    loss of a node."""
    if not is_elastic(spec):
        return {}
    return {"nodes": f"{fewest_nodes(spec)}-{most_nodes(spec)}", "no-kill": True}


def _options(spec: RunSpec, place: BatchJob) -> dict[str, Any]:
    slurm = _slurm(spec)
    # a requeue waits two minutes, and could meet the successor
    again: dict[str, Any] = {"no-requeue": True}
    if spec.launch.is_requeued:
        again = {"requeue": "expedite" if spec.launch.continuation == "expedite" else True}
    ours = {
        "output": str(place.output),
        "signal": f"B:USR2@{slurm.notice_s}",
        "time": slurm.time_limit,
        "reservation": slurm.reservation,
        "dependency": ":".join(("afterany", *place.after)) if place.after else None,
        **again,
    }
    # by which the commands of the run find its jobs; a site may need another one
    options = {"comment": place.comment, **slurm.options}
    further = {name: value for name, value in options.items() if value is not False}
    return {key: value for key, value in {**further, **ours}.items() if value is not None}


def gpu_options(slurm: SlurmSpec, per_node: int) -> dict[str, Any]:
    """Returns the arguments of submitit that request GPUs, as the site wants it."""
    what = f"{slurm.gpu_type}:{per_node}" if slurm.gpu_type else per_node
    match slurm.gpus:
        case "gpus-per-node":
            return {"gpus_per_node": what}
        case "gres":
            return {"gres": f"gpu:{what}"}
        case _:
            return {}


def _exports(code: str) -> list[str]:
    """Returns lines that make imports come from the snapshot and not from where the job was
    submitted."""
    return [
        f'export PYTHONPATH={code}"${{PYTHONPATH:+:$PYTHONPATH}}"',
        "export PYTHONSAFEPATH=1",
    ]


def render(command: str, parameters: Mapping[str, Any], tasks: int | None = None) -> str:
    """Returns exactly the script that submitit's Slurm executor submits for these parameters.

    submitit's own function takes as long to import as the rest of a dry run; a test checks that
    both agree.

    Args:
        command: shell words of the last line.
        parameters: with `use_srun` false, and `setup`.
        tasks: the number of tasks of an array. None: no array.
    """
    flags = {k: v for k, v in parameters.items() if v is not None and k not in _NO_FLAGS}
    flags["open-mode"] = "append"
    if tasks is not None:
        flags["array"] = f"0-{tasks - 1}%{min(tasks, parameters['array_parallelism'])}"
    flags |= parameters["additional_parameters"]
    lines = [
        *("#!/bin/bash", "", "# Parameters"),
        *_flags(flags),
        *("", "# setup", *parameters["setup"]),
        *("", "# command", "export SUBMITIT_EXECUTOR=slurm", command, ""),
    ]
    return "\n".join(lines)


def _flags(flags: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted(flags):
        value = "" if flags[key] is True else f"={shlex.quote(str(flags[key]))}"
        yield f"#SBATCH --{key.replace('_', '-')}{value}"
