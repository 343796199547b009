"""The torchrun of one node: pure functions of the spec and the node's place."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hpckit.config.spec import RunSpec
from hpckit.ipc.process_environment import NodeEnvironment
from hpckit.ipc.rendezvous_names import rendezvous_id

# Seconds for the nodes of a generation to meet: a cold file system makes imports slow.
JOIN_TIMEOUT_S = 600
MONITOR_INTERVAL_S = 0.1

FORKING = (sys.executable, "-m", "hpckit.trainer.torchrun.forked_workers")
"""Takes torchrun's arguments."""
SERVER = (sys.executable, "-m", "hpckit.trainer.torchrun.fork_server")
"""Begins torchruns of that kind, imports done."""
PLAIN = (sys.executable, "-m", "hpckit.trainer.torchrun.spawned_workers")
"""As `FORKING`."""
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Rendezvous:
    """Where a generation's nodes meet: the supervisor's store, so no node's loss takes it down."""

    host: str
    port: int
    token: str
    """What it heeds a node for."""
    local: str
    """This node's own address, by which the others reach it."""
    place: int
    """Of this node among those of the generation."""


def torchrun_arguments(spec: RunSpec, at: NodeEnvironment, meet: Rendezvous) -> list[str]:
    """Those of the torchrun of node `at`. Others can read them, so the token is not there."""
    return [
        f"--nnodes={at.nodes}",
        f"--nproc-per-node={spec.launch.gpus_per_node}",
        f"--max-restarts={spec.retry.in_place}",
        f"--monitor-interval={MONITOR_INTERVAL_S}",
        # others are the agent's affair: SIGTERM may be Slurm's, to all processes of a step
        "--signals-to-handle=SIGINT",
        "--rdzv-backend=hpckit",
        f"--rdzv-endpoint={meet.host}:{meet.port}",
        f"--rdzv-id={rendezvous_id(at.run.name, at.generation)}",
        f"--rdzv-conf=place={meet.place},join_timeout={JOIN_TIMEOUT_S}",
        f"--local-addr={meet.local}",
        f"--log-dir={at.run.node_logs(at.generation, at.node) / 'torchrun'}",
        *("-m", "hpckit.trainer.worker"),
    ]


def torchrun_command(spec: RunSpec, at: NodeEnvironment, meet: Rendezvous) -> list[str]:
    """What the node's agent runs, by its fork server if it can."""
    program = FORKING if spec.launch.preload else PLAIN
    return [*program, *torchrun_arguments(spec, at, meet)]


def torchrun_variables(threads: int) -> dict[str, str]:
    """Environment of torchrun and its workers.

    The rendezvous store is not shared with the workers' process group: with a shared one a restart
    on several nodes meets the keys of the attempt before and mostly hangs (pytorch#135712). All
    nodes have as many workers, so that torchrun need not ask each how many.
    """
    return {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_WORKER_IDENTICAL": "1",
        THREADS: str(threads),
        "PYTHONUNBUFFERED": "1",
    }
