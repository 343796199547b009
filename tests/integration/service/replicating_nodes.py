"""Nodes that replicate to each other: rings, deaths of nodes, and what is held for others."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkpointing.authenticated_channel import KEY_BYTES
from checkpointing.restore.peer_replicas import introduction
from checkpointing.service.config import ServiceConfig
from checkpointing.service.replication.replication_ring import ReplicationRing, RingNode, dump_ring
from checkpointing.staging.arena import Arena
from tests.integration.service.service_nodes import Cells, Nodes, Trainer, pid_of, status_of, until
from tests.stopped_processes import stop

LOOPBACK = "127.0.0.1"


def of_node(nodes: Nodes, name: str) -> list[Trainer]:
    return [t for t in nodes.trainers if t.client._config is nodes.configs[name]]


def join(nodes: Nodes, dead: tuple[str, ...] = ()) -> ReplicationRing:
    """Let all nodes replicate; the ring as the first one sees it.

    Args:
        dead: nodes whose address leads nowhere.
    """
    found = []
    for name in nodes.configs:
        trainers = of_node(nodes, name)
        at = trainers[0].client.ask("listen", address=LOOPBACK, port=0)
        port = 1 if name in dead else at["port"]
        found.append(RingNode(name, LOOPBACK, port, tuple(t.rank for t in trainers)))
    key = secrets.token_bytes(KEY_BYTES)
    for me, name in enumerate(nodes.configs):
        for trainer in of_node(nodes, name):
            ring = ReplicationRing(trainer.generation, tuple(found), me, key)
            trainer.client.ask("ring", **dump_ring(ring))
            trainer.client.introduce = introduction(ring)
    return ReplicationRing(nodes.trainers[0].generation, tuple(found), 0, key)


def peers(config: ServiceConfig) -> dict[str, Any]:
    """What the service of a node says of replication; empty if there is none."""
    return (status_of(config) or {}).get("replication") or {}


def held(config: ServiceConfig) -> Mapping[int, list[int]]:
    """Steps by rank that a node keeps for others."""
    return {one["rank"]: one["steps"] for one in peers(config).get("held", [])}


def await_held(config: ServiceConfig, step: int, ranks: tuple[int, ...]) -> None:
    until(
        lambda: all(step in held(config).get(rank, []) for rank in ranks),
        f"node {config.node} holds step {step} of ranks {ranks}: {peers(config)}",
    )


def lose(nodes: Nodes, name: str) -> None:
    """A node is gone at once, with its service and its trainers."""
    pid = pid_of(nodes.configs[name])
    assert pid is not None
    stop(pid)  # it does not see its trainers go
    for trainer in of_node(nodes, name):
        nodes.trainers.remove(trainer)
        trainer.close(goodbye=False)
    os.kill(pid, signal.SIGKILL)


def pulled(trainer: Trainer, old: Any, step: int, node: int) -> Cells:
    """A trainer's part of a step of an earlier generation, from a node of its ring."""
    answer = trainer.client.ask("pull", generation=vars(old), step=step, node=node)
    assert answer["snapshot"]["step"] == step
    with Arena.attach(answer["fds"][0]) as arena:
        cells = arena.view(0, trainer.layout.end).view(np.float32).copy()
    return cells.reshape(trainer.rows, -1)
