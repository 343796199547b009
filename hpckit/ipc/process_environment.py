"""The environment variables that supervisor, agents and workers pass to their child processes.

They are an interface between processes of hpckit; users set the config instead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpckit.ipc.heartbeat_table import HeartbeatTable, HeartbeatWriter
from hpckit.rundir.directory import RunDir

_PREFIX = "HPCKIT_"
STORE_TOKEN = f"{_PREFIX}STORE_TOKEN"
"""Variable with the token by which the torchrun of a node authenticates to the rendezvous store;
workers do not have it."""
ATTEMPT = f"{_PREFIX}ATTEMPT"
"""Variable with the number of the attempt within the generation, for programs of the user."""
STACKS_SIGNAL = signal.SIGUSR1
"""Signal at which a worker writes the stacks of its threads."""


@dataclass(frozen=True)
class NodeEnvironment:
    """The run, the generation and the node that a process belongs to."""

    run: RunDir
    submission: int
    generation: int
    node: int
    nodes: int
    """Number of nodes of this generation."""

    def to_env(self) -> dict[str, str]:
        """Returns the variables for a child process."""
        return agent_variables(self.run, self.submission, self.node) | {
            f"{_PREFIX}GENERATION": str(self.generation),
            f"{_PREFIX}NODES": str(self.nodes),
        }

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> NodeEnvironment:
        """Returns what `env` describes.

        Raises:
            RuntimeError: hpckit did not start the process.
        """
        get = _Getter(env)
        run, submission, node = agent_place(env)
        generation, nodes = int(get(f"{_PREFIX}GENERATION")), int(get(f"{_PREFIX}NODES"))
        return cls(run, submission, generation, node, nodes)


@dataclass(frozen=True)
class WorkerEnvironment:
    """The environment of a worker: its node, the variables of torchrun, and the heartbeat table."""

    at: NodeEnvironment
    rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    attempt: int
    """Number of restarts of the workers within this generation."""
    device: str
    """`cpu` or `cuda`."""
    heartbeat_table: str
    """Path by which `HeartbeatTable.attach` opens the table of the node."""
    is_memory_here: bool
    """Whether no other node can hold a part of a usable snapshot in its memory."""
    is_health_check: bool = False
    """Whether the worker measures its node, and does not train."""
    snapshots: str | None = None
    """Address of the `SnapshotExchange` of the node; None: the agent asks no questions."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> WorkerEnvironment:
        """Returns what `env` describes; raises as `NodeEnvironment.from_env`."""
        get = _Getter(env)
        return cls(
            at=NodeEnvironment.from_env(env),
            rank=int(get("RANK")),
            local_rank=int(get("LOCAL_RANK")),
            local_world_size=int(get("LOCAL_WORLD_SIZE")),
            world_size=int(get("WORLD_SIZE")),
            attempt=int(get("TORCHELASTIC_RESTART_COUNT")),
            device=get(f"{_PREFIX}DEVICE"),
            heartbeat_table=get(f"{_PREFIX}BOARD"),
            is_memory_here=get(f"{_PREFIX}MEMORY_HERE") == "1",
            is_health_check=get(f"{_PREFIX}HEALTH_CHECK") == "1",
            snapshots=env.get(f"{_PREFIX}SNAPSHOTS"),
        )

    def attach_heartbeats(self) -> HeartbeatWriter:
        """Opens the heartbeat table of the node for this worker.

        Raises:
            OSError: the agent that made the table is gone, or belongs to another user.
        """
        table = HeartbeatTable.attach(self.heartbeat_table, self.local_world_size)
        return HeartbeatWriter(table, self.local_rank, self.attempt)


def task_variables(env: WorkerEnvironment, given: Mapping[str, str]) -> dict[str, str]:
    """Returns variables of Slurm as a rank has them where srun starts each rank as a task, for
    programs that know their rank from these; none outside of a step.

    Args:
        given: the variables of the process. Those of the step describe its agent, which is the one
            task of its node, and all nodes of the job, of which some may be spares.
    """
    if "SLURM_PROCID" not in given:
        return {}
    tasks, on_node = str(env.world_size), str(env.local_world_size)
    nodes = env.world_size // env.local_world_size
    by_node = on_node if nodes == 1 else f"{on_node}(x{nodes})"
    return {
        "SLURM_PROCID": str(env.rank),
        "SLURM_LOCALID": str(env.local_rank),
        "SLURM_NODEID": str(env.rank // env.local_world_size),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
        "SLURM_NTASKS_PER_NODE": on_node,
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), by_node),
        **dict.fromkeys(
            ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"), str(nodes)
        ),
    }


@dataclass(frozen=True)
class _Getter:
    env: Mapping[str, str]

    def __call__(self, name: str) -> str:
        if name not in self.env:
            raise RuntimeError(
                f"{name} is not set: training functions are started by "
                "`hpckit launch entry=module:function ...`"
            )
        return self.env[name]


def worker_variables(
    device: str,
    heartbeat_table: str,
    *,
    is_memory_here: bool = False,
    is_health_check: bool = False,
    snapshots: str | None = None,
) -> dict[str, str]:
    """Returns the variables that an agent adds for its workers."""
    return ({} if snapshots is None else {f"{_PREFIX}SNAPSHOTS": snapshots}) | {
        f"{_PREFIX}DEVICE": device,
        f"{_PREFIX}BOARD": heartbeat_table,
        f"{_PREFIX}MEMORY_HERE": str(int(is_memory_here)),
        f"{_PREFIX}HEALTH_CHECK": str(int(is_health_check)),
    }


def agent_variables(run: RunDir, submission: int, node: int) -> dict[str, str]:
    """Returns the variables for an agent, which serves several generations."""
    return {
        f"{_PREFIX}RUN": str(run.path),
        f"{_PREFIX}SUBMISSION": str(submission),
        f"{_PREFIX}NODE": str(node),
    }


def job_variables(job: str, host: str) -> dict[str, str]:
    """Returns the variables with the number of the agent's job and the host of its supervisor,
    which is the first process of the job."""
    return {f"{_PREFIX}JOB": job, f"{_PREFIX}JOB_HOST": host}


def job_of() -> tuple[str, str] | None:
    """Returns the values of `job_variables`, or None if the process is in no job."""
    job, host = os.environ.get(f"{_PREFIX}JOB"), os.environ.get(f"{_PREFIX}JOB_HOST")
    return (job, host) if job and host else None


def agent_place(env: Mapping[str, str] = os.environ) -> tuple[RunDir, int, int]:
    """Returns the run, the number of its submission and the number of the node.

    Raises:
        RuntimeError: hpckit did not start the process.
    """
    get = _Getter(env)
    run = RunDir(Path(get(f"{_PREFIX}RUN")))
    return run, int(get(f"{_PREFIX}SUBMISSION")), int(get(f"{_PREFIX}NODE"))
