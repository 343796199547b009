"""Nodes that are lost with all that runs on them: the next generation goes on from what their peers
hold, bit for bit."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from checkpointing.service.config import ServiceConfig
from tests.integration.service.replica_trainer import ReplicaTrainer
from tests.integration.service.replicating_nodes import await_held
from tests.integration.service.service_nodes import end_all, pid_of, saved, services, until
from tests.stopped_processes import stop

CRAWL = 8e3  # bytes per second: a save takes far longer than a test


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HPCKIT_RUNTIME_DIR", str(tmp_path / "rt"))
    yield tmp_path
    end_all(tmp_path / "rt")


def config(folder: Path, node: str) -> ServiceConfig:
    return ServiceConfig(str(folder / "store"), "r", node=node)


def start(
    folder: Path, nodes: Sequence[str], stack: ExitStack, slow: int | None = None
) -> list[ReplicaTrainer]:
    """A rank on each of these nodes.

    Args:
        slow: the rank whose node makes nothing durable in the time of a test.
    """
    rendezvous = folder / f"rendezvous-{secrets.token_hex(4)}"
    return [
        stack.enter_context(
            ReplicaTrainer(
                folder / "store", rendezvous, node, rank, len(nodes), CRAWL if rank == slow else 0
            )
        )
        for rank, node in enumerate(nodes)
    ]


def all_do(trainers: Sequence[ReplicaTrainer], *words: object) -> list[Any]:
    for trainer in trainers:
        trainer.tell(*words)
    return [trainer.hear() for trainer in trainers]


def lose(folder: Path, trainer: ReplicaTrainer) -> None:
    """The node is gone: its service first, so that it sees nobody go."""
    pid = pid_of(config(folder, trainer.node))
    assert pid is not None
    stop(pid)
    trainer.kill()
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("lost", "where"), [(0, "a new node"), (1, "the one that is left")])
def test_a_lost_node_loses_nothing(folder: Path, lost: int, where: str) -> None:
    names = ["a", "b"]
    left = names[1 - lost]
    with ExitStack() as stack:
        trainers = start(folder, names, stack, lost)
        assert all_do(trainers, "restore") == [[None, [], ""], [None, [], ""]]
        prints = []
        for step in (1, 2):
            prints = all_do(trainers, "save", step)
            await_held(config(folder, left), step, (lost,))
        assert saved(folder / "store") == {}
        lose(folder, trainers[lost])
        trainers[1 - lost].kill()
        after = [left, left] if where == "the one that is left" else ["c", left]
        again = start(folder, after, stack)
        found = all_do(again, "restore")
        off = ["replication_off"] * 2 if after == [left, left] else []
        assert [one[0] for one in found] == [2, 2]
        assert found[0][1] == [*off, "memory"]
        assert [one[2] for one in found] == prints
        all_do(again, "wait")
        all_do(again, "save", 3)
        all_do(again, "wait")
        all_do(again, "close")
    until(lambda: services(folder / "rt") == [], "no service is left")
    assert {2, 3} <= set(saved(folder / "store"))


def test_another_number_of_nodes_goes_on_from_what_peers_hold(folder: Path) -> None:
    """In another form than it lies there: so it is made durable first."""
    with ExitStack() as stack:
        trainers = start(folder, ["a", "b", "c"], stack, 0)
        all_do(trainers, "restore")
        all_do(trainers, "save", 1)
        await_held(config(folder, "b"), 1, (0,))
        lose(folder, trainers[0])
        for trainer in trainers[1:]:
            trainer.kill()
        again = start(folder, ["b", "c"], stack)
        found = all_do(again, "restore")
        assert [one[0] for one in found] == [1, 1]
        assert found[0][1] == ["store"]
        all_do(again, "close")
    until(lambda: services(folder / "rt") == [], "no service is left")


def test_one_node_alone_goes_on_without_replicas(folder: Path) -> None:
    with ExitStack() as stack:
        trainers = start(folder, ["a"], stack)
        assert all_do(trainers, "restore") == [[None, ["replication_off"] * 2, ""]]
        all_do(trainers, "save", 1)
        all_do(trainers, "close")
    assert set(saved(folder / "store")) == {1}
