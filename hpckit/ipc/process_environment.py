"""Environment variables that supervisor, agent and workers pass to their child processes.

They are an interface between hpckit's own processes; users set the config instead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpckit.rundir.directory import RunDir

_PREFIX = "HPCKIT_"
STORE_TOKEN = f"{_PREFIX}STORE_TOKEN"
"""Token with which a node's torchrun authenticates to the rendezvous store; workers do not have
it."""
STACKS_SIGNAL = signal.SIGUSR1
"""Makes a worker dump the stacks of its threads."""


@dataclass(frozen=True)
class NodeEnvironment:
    """The place of a process in its run."""

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
        """Returns the place that `env` describes.

        Raises:
            RuntimeError: the process was not started by hpckit.
        """
        get = _Getter(env)
        run, submission, node = agent_place(env)
        generation, nodes = int(get(f"{_PREFIX}GENERATION")), int(get(f"{_PREFIX}NODES"))
        return cls(run, submission, generation, node, nodes)


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker knows beside its node: torchrun's variables and the heartbeat table."""

    at: NodeEnvironment
    rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    attempt: int
    """Restarts of the workers within this generation."""
    device: str
    """`cpu` or `cuda`."""
    board: str
    is_memory_here: bool
    """Whether no other node can hold a part of a usable snapshot in its memory."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> WorkerEnvironment:
        """As `NodeEnvironment.from_env`."""
        get = _Getter(env)
        return cls(
            at=NodeEnvironment.from_env(env),
            rank=int(get("RANK")),
            local_rank=int(get("LOCAL_RANK")),
            local_world_size=int(get("LOCAL_WORLD_SIZE")),
            world_size=int(get("WORLD_SIZE")),
            attempt=int(get("TORCHELASTIC_RESTART_COUNT")),
            device=get(f"{_PREFIX}DEVICE"),
            board=get(f"{_PREFIX}BOARD"),
            is_memory_here=get(f"{_PREFIX}MEMORY_HERE") == "1",
        )


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


def worker_variables(device: str, board: str, *, is_memory_here: bool = False) -> dict[str, str]:
    """Returns the variables that an agent adds for its workers."""
    here = str(int(is_memory_here))
    return {f"{_PREFIX}DEVICE": device, f"{_PREFIX}BOARD": board, f"{_PREFIX}MEMORY_HERE": here}


def agent_variables(run: RunDir, submission: int, node: int) -> dict[str, str]:
    """Returns the variables for an agent, which serves several generations."""
    return {
        f"{_PREFIX}RUN": str(run.path),
        f"{_PREFIX}SUBMISSION": str(submission),
        f"{_PREFIX}NODE": str(node),
    }


def job_variables(job: str, host: str) -> dict[str, str]:
    """Returns the variables with the agent's job, and the node of the job's first process, the
    supervisor."""
    return {f"{_PREFIX}JOB": job, f"{_PREFIX}JOB_HOST": host}


def job_of(env: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """Returns the values of `job_variables`, or None if the process is in no job."""
    job, host = env.get(f"{_PREFIX}JOB"), env.get(f"{_PREFIX}JOB_HOST")
    return (job, host) if job and host else None


def agent_place(env: Mapping[str, str] = os.environ) -> tuple[RunDir, int, int]:
    """Returns the run, the number of its submission, and that of the node; raises as `from_env`."""
    get = _Getter(env)
    run = RunDir(Path(get(f"{_PREFIX}RUN")))
    return run, int(get(f"{_PREFIX}SUBMISSION")), int(get(f"{_PREFIX}NODE"))
