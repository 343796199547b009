"""The Slurm job of the supervisor, with its nodes, and the command that starts an agent on one of
them."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpckit.slurm.scontrol import field, show_job
from hpckit.slurm.slurm_query import query

if TYPE_CHECKING:  # by the spec, it would import pydantic into a requeued job before its own code
    from hpckit.slurm.container import RunContainer

log = logging.getLogger(__name__)

_TIMEOUT_S = 20.0
_ARRAY = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")
_OF_FIELDS = (
    (
        ("TresPerNode", "TresPerJob", "TresPerSocket", "TresPerTask", "AllocTRES", "TRES"),
        re.compile(
            "SLURM_(GPUS(_ON_NODE|_PER_(NODE|SOCKET|TASK))?|SHARDS_ON_NODE|JOB_GPUS"
            "|(CPUS|MEM|NTASKS)_PER_GPU)"
        ),
        "gres",
    ),
    (("HetJobId",), re.compile("SLURM_HET_.*"), ""),
    (("Reservation",), re.compile("SLURM_JOB_RESERVATION"), ""),
    (("Licenses",), re.compile("SLURM_JOB_LICENSES"), ""),
    (("Dependency",), re.compile("SLURM_JOB_DEPENDENCY"), ""),
)
"""Fields of a job, the variables that Slurm sets if one of the fields has a value, and what the
value has in it."""


@dataclass(frozen=True)
class Allocation:
    """A Slurm job, as seen from inside."""

    job: str
    """Number of the job; for a task of an array, array and task: 7_0."""
    hosts: tuple[str, ...]
    """Names of the nodes in Slurm's order; the supervisor runs on the first one."""


def allocation(env: Mapping[str, str]) -> Allocation:
    """Returns the job whose batch process this is.

    Raises:
        RuntimeError: the process is not in a Slurm job.
        OSError, subprocess.SubprocessError: Slurm does not report the names of the nodes.
    """
    job, nodes = env.get("SLURM_JOB_ID"), env.get("SLURM_JOB_NODELIST")
    if not job or not nodes:
        raise RuntimeError(
            "cluster.kind=slurm, but this process is not in a Slurm job: use hpckit launch"
        )
    # the array's last task has the array's own number, which Slurm takes for the whole array
    task = [env[name] for name in _ARRAY if name in env]
    return Allocation("_".join(task) or job, hostnames(nodes, env))


def hostnames(nodes: str, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns the names in a node list as Slurm writes it: n[1-3],m7.

    Raises:
        OSError, subprocess.SubprocessError: Slurm does not answer.
    """
    return tuple(query(["scontrol", "show", "hostnames", nodes], _TIMEOUT_S, env).split())


def leave_array(env: MutableMapping[str, str]) -> None:
    """Removes array variables from the environment, as jobs inherit what Slurm does not set for
    them, and submitit would take a job that this process submits for a task of the array."""
    for name in [name for name in env if name.startswith("SLURM_ARRAY_")]:
        del env[name]


def leave_submitting_job(env: MutableMapping[str, str]) -> None:
    """Removes from the environment of a job that a person has submitted inside of another job what
    that other one was or had: a task of an array, requeued, GPUs. Slurm sets these variables only
    where they apply, and passes those of the submitter on otherwise. Without an answer of Slurm
    they stay."""
    job = env.get("SLURM_JOB_ID")
    names = ("SLURM_RESTART_COUNT", *_ARRAY)
    is_doubtful = any(name in env for name in names) or next(unset_variables("", env), None)
    if job is None or not is_doubtful or (text := _job_text(job)) is None:
        return
    for name in list(unset_variables(text, env)):
        del env[name]
    if field(text, "ArrayJobId") is None:
        leave_array(env)
    restarts = field(text, "Restarts")
    if restarts == "0":
        env.pop("SLURM_RESTART_COUNT", None)
    elif restarts is not None and "SLURM_RESTART_COUNT" in env:
        env["SLURM_RESTART_COUNT"] = restarts


def unset_variables(text: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yields the variables of `env` that Slurm does not set for a job, as it has nothing of what
    they describe. Pure.

    Args:
        text: the output of `scontrol show job` for the job.
    """
    for keys, names, part in _OF_FIELDS:
        values = [value for key in keys if (value := field(text, key)) not in (None, "(null)")]
        if not any(part in str(value) for value in values):
            yield from (name for name in env if names.fullmatch(name))


def is_cancelled(job: str) -> bool:
    """Returns whether a person, and not the scheduler, cancelled the job; False if Slurm does not
    answer."""
    text = _job_text(job)
    return text is not None and shows_user_cancel(text, restarts())


def is_requeued(job: str) -> bool:
    """Returns whether this process's job is to be run again; False if Slurm does not answer."""
    text = _job_text(job)
    return text is not None and shows_requeue(text, restarts())


def shows_user_cancel(text: str, restarts: int) -> bool:
    """Returns whether the output of `scontrol show job` for an ending job shows that a person
    cancelled it: the scheduler records a time of preemption, or a reason (TimeLimit, NodeDown).
    Seen with Slurm 22.05.

    Args:
        restarts: how often the job had been restarted when it started.
    """
    state, reason, preempted = (field(text, key) for key in ("JobState", "Reason", "PreemptTime"))
    has_no_cause = reason == "None" and preempted in (None, "None")
    if shows_requeue(text, restarts):
        return False
    return state == "CANCELLED" or (state == "COMPLETING" and has_no_cause)


def shows_requeue(text: str, restarts: int) -> bool:
    """Returns whether the output of `scontrol show job` for a job that has not ended counts its
    next run already. Arguments as in `shows_user_cancel`."""
    counted = field(text, "Restarts")
    return counted is not None and counted.isdigit() and int(counted) > restarts


def _job_text(job: str) -> str | None:
    try:
        return show_job(job, _TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("cannot query the state of job %s: %s", job, error)
        return None


def restarts() -> int:
    """Returns how often the job of this process had been restarted when it started; Slurm sets no
    count in its first run."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def srun(
    host: str,
    variables: Mapping[str, str],
    command: Sequence[str],
    container: RunContainer | None = None,
) -> list[str]:
    """Returns the command that runs `command` on a node of the job, as a step of its own.

    The step shares all that the job has on the node with other steps (`--overlap`). It is not bound
    to cores, as torchrun's workers would inherit that. srun itself has the environment of the job;
    `variables` are only for the node, as processes are identified by them.
    """
    inner = ["env", *(f"{name}={value}" for name, value in sorted(variables.items())), *command]
    return [
        *("srun", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--overlap", "--mem=0"),
        *("--export=ALL", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--quiet"),
        "--job-name=hpckit-agent",
        *(container.srun_options() if container else ()),
        *(container.wrapped(inner) if container else inner),
    ]
