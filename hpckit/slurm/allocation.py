"""The job that the supervisor is: its nodes, and how an agent is started on one of them."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from hpckit.slurm.container import RunContainer
from hpckit.slurm.scontrol import field, show_job

log = logging.getLogger(__name__)

_PATIENCE_S = 20.0
_ARRAY = ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")


@dataclass(frozen=True)
class Allocation:
    """A Slurm job, from inside."""

    job: str
    """Its number; of a task of an array, those of both: 7_0."""
    hosts: tuple[str, ...]
    """Names of its nodes, in Slurm's order: the first one is the supervisor's."""

    @property
    def is_task(self) -> bool:
        """Whether it is a task of an array, whose name is another than the run's."""
        return "_" in self.job


def allocation(env: Mapping[str, str]) -> Allocation:
    """The job that this process is the batch process of.

    Raises:
        RuntimeError: it is none of Slurm's.
        OSError, subprocess.SubprocessError: Slurm does not tell the names of its nodes.
    """
    job, nodes = env.get("SLURM_JOB_ID"), env.get("SLURM_JOB_NODELIST")
    if not job or not nodes:
        raise RuntimeError("cluster.kind=slurm, but this is no job: start it by hpckit launch")
    # the last task of an array has the array's own number, by which Slurm means all of it
    task = [env[name] for name in _ARRAY if name in env]
    return Allocation("_".join(task) or job, hostnames(nodes, env))


def hostnames(nodes: str, env: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The names in a list of nodes as Slurm writes it: n[1-3],m7.

    Raises:
        OSError, subprocess.SubprocessError: Slurm does not tell.
    """
    command = ["scontrol", "show", "hostnames", nodes]
    done = subprocess.run(
        command, env=dict(env), capture_output=True, text=True, check=True, timeout=_PATIENCE_S
    )
    return tuple(done.stdout.split())


def leave_array(env: MutableMapping[str, str]) -> None:
    """What this process starts and submits from here on is no task of its array: a job inherits
    what Slurm does not set for it, and submitit would take it for one."""
    for name in [name for name in env if name.startswith("SLURM_ARRAY_")]:
        del env[name]


def is_cancelled(job: str) -> bool:
    """Whether a person, not the scheduler, ends the job for good. Not if Slurm does not tell."""
    text = _shown(job)
    return text is not None and shows_user_cancel(text, _restarts())


def is_requeued(job: str) -> bool:
    """Whether the job, whose process this is, is to be run again; not if Slurm does not tell."""
    text = _shown(job)
    return text is not None and shows_requeue(text, _restarts())


def shows_user_cancel(text: str, restarts: int) -> bool:
    """Of what `scontrol show job` says of a job that is told to end: the scheduler leaves a time of
    preemption, or a reason (TimeLimit, NodeDown). Seen with Slurm 22.05.

    Args:
        restarts: how often the job had been run again when it began.
    """
    state, reason, preempted = (field(text, key) for key in ("JobState", "Reason", "PreemptTime"))
    has_no_cause = reason == "None" and preempted in (None, "None")
    if shows_requeue(text, restarts):
        return False
    return state == "CANCELLED" or (state == "COMPLETING" and has_no_cause)


def shows_requeue(text: str, restarts: int) -> bool:
    """Of what `scontrol show job` says of a job that has not ended yet: it counts the next run of
    it already. Arguments as of `shows_user_cancel`."""
    counted = field(text, "Restarts")
    return counted is not None and counted.isdigit() and int(counted) > restarts


def _shown(job: str) -> str | None:
    try:
        return show_job(job, _PATIENCE_S)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("what becomes of job %s is not known: %s", job, error)
        return None


def _restarts() -> int:
    """Slurm sets no count for the first time."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def srun(
    host: str,
    variables: Mapping[str, str],
    command: Sequence[str],
    container: RunContainer | None = None,
) -> list[str]:
    """The command that runs another one on a node of the job, as a step of its own.

    It has all of the node that the job has, together with other steps (`--overlap`); nobody is
    bound to a core, as torchrun's workers would be with it. srun's own environment is that of the
    job: `variables` are for the node alone, since processes are told apart by them.
    """
    inner = ["env", *(f"{name}={value}" for name, value in sorted(variables.items())), *command]
    return [
        *("srun", "--nodes=1", "--ntasks=1", f"--nodelist={host}", "--overlap", "--mem=0"),
        *("--export=ALL", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0", "--quiet"),
        "--job-name=hpckit-agent",
        *(container.srun_options() if container else ()),
        *(container.wrapped(inner) if container else inner),
    ]
