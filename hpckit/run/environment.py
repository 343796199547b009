"""What supervisor, agent and worker hand down to one another in environment variables.

An interface between hpckit's own processes, not one for people: people use the config.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpckit.run.directory import RunDir

_PREFIX = "HPCKIT_"


@dataclass(frozen=True)
class NodeEnvironment:
    """Place of a process in its run."""

    run: RunDir
    submission: int
    generation: int
    node: int
    nodes: int
    """Nodes of this generation."""

    def to_env(self) -> dict[str, str]:
        """The variables for a child process."""
        return {
            f"{_PREFIX}RUN": str(self.run.path),
            f"{_PREFIX}SUBMISSION": str(self.submission),
            f"{_PREFIX}GENERATION": str(self.generation),
            f"{_PREFIX}NODE": str(self.node),
            f"{_PREFIX}NODES": str(self.nodes),
        }

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> NodeEnvironment:
        """The place that `env` states.

        Raises:
            RuntimeError: the process was not started by hpckit.
        """
        get = _Getter(env)
        return cls(
            run=RunDir(Path(get(f"{_PREFIX}RUN"))),
            submission=int(get(f"{_PREFIX}SUBMISSION")),
            generation=int(get(f"{_PREFIX}GENERATION")),
            node=int(get(f"{_PREFIX}NODE")),
            nodes=int(get(f"{_PREFIX}NODES")),
        )


@dataclass(frozen=True)
class WorkerEnvironment:
    """What a worker knows beside its node: torchrun's variables and the board."""

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
        )


@dataclass(frozen=True)
class _Getter:
    env: Mapping[str, str]

    def __call__(self, name: str) -> str:
        if name not in self.env:
            raise RuntimeError(
                f"{name} is not set: training functions are started by "
                "`python launch.py entry=module:function ...`"
            )
        return self.env[name]


def worker_variables(device: str, board: str) -> dict[str, str]:
    """The variables that an agent adds for its workers."""
    return {f"{_PREFIX}DEVICE": device, f"{_PREFIX}BOARD": board}
