"""The torchrun command of one node, as pure functions of the spec and the node's place."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hpckit.config.spec import RunSpec
from hpckit.ipc.process_environment import NodeEnvironment
from hpckit.ipc.rendezvous_names import rendezvous_id

# Seconds for the nodes of a generation to meet; imports are slow on a cold file system.
JOIN_TIMEOUT_S = 600
MONITOR_INTERVAL_S = 0.1

FORKING = (sys.executable, "-m", "hpckit.trainer.torchrun.forked_workers")
"""A torchrun that forks its workers; takes torchrun's arguments."""
SERVER = (sys.executable, "-m", "hpckit.trainer.torchrun.fork_server")
"""The fork server, which forks such torchruns with imports done."""
PLAIN = (sys.executable, "-m", "hpckit.trainer.torchrun.spawned_workers")
"""A torchrun that spawns its workers; takes torchrun's arguments."""
THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Rendezvous:
    """Where the nodes of a generation meet: the supervisor's store, so that the loss of a node does
    not end it."""

    host: str
    port: int
    token: str
    """Authenticates this node to the store."""
    local: str
    """This node's own address for the other nodes."""
    place: int
    """Place of this node in the generation."""


def torchrun_arguments(
    spec: RunSpec, at: NodeEnvironment, meet: Rendezvous, max_restarts: int | None = None
) -> list[str]:
    """Returns the arguments of the torchrun of node `at`. They are without the token, as other
    users can read them.

    Args:
        max_restarts: restarts of the workers in place; None: `retry.max_restarts`.
    """
    restarts = spec.retry.max_restarts if max_restarts is None else max_restarts
    return [
        f"--nnodes={at.nodes}",
        f"--nproc-per-node={spec.launch.nproc_per_node}",
        f"--max-restarts={restarts}",
        f"--monitor-interval={MONITOR_INTERVAL_S}",
        # the agent handles other signals; SIGTERM may be Slurm's, to all processes of a step
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
    """Returns the command that the node's agent runs, through its fork server if possible."""
    program = FORKING if spec.launch.preload else PLAIN
    return [*program, *torchrun_arguments(spec, at, meet)]


def torchrun_variables(threads: int) -> dict[str, str]:
    """Returns the environment of torchrun and its workers.

    The workers' process group does not share the rendezvous store: with a shared store, a restart
    on several nodes meets the keys of the previous attempt and mostly hangs (pytorch#135712). All
    nodes have the same number of workers, so that torchrun need not ask each node.
    """
    return {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_ELASTIC_WORKER_IDENTICAL": "1",
        THREADS: str(threads),
        "PYTHONUNBUFFERED": "1",
    }
