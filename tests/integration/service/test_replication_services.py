"""Services that keep each other's snapshots: what a lost node has staged is not lost."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpointing.errors import ServiceError
from tests.integration.service.replicating_nodes import (
    await_held,
    held,
    join,
    lose,
    of_node,
    peers,
    pulled,
)
from tests.integration.service.service_nodes import (
    Nodes,
    assert_exact,
    assert_nothing_held,
    content,
    nodes_at,
    saved,
    services,
    until,
)

ROWS = 1024  # 1 MiB per rank
CRAWL = 32e3  # bytes per second: a save takes far longer than a test
SLOW = 1e6  # a save takes two seconds


def replicating(
    store: Path,
    count: int = 2,
    *,
    slow: str = "",
    rate: float = CRAWL,
    peer_rate: float | None = None,
    peer_gone_s: float = 1.0,
    dead: tuple[str, ...] = (),
) -> Nodes:
    """Nodes of two ranks.

    Args:
        slow: the one that saves at this rate alone.
        dead: nodes that others do not reach.
    """
    configs = {
        name: replace(
            config,
            peer_gone_s=peer_gone_s,
            linger_s=1.0,
            budget=replace(
                config.budget,
                bytes_per_s=rate if name == slow else None,
                peer_bytes_per_s=peer_rate,
            ),
        )
        for name, config in nodes_at(store, count).items()
    }
    nodes = Nodes.start(configs, 2, rows=ROWS)
    join(nodes, dead)
    return nodes


def assert_nothing_left(runtime: Path) -> None:
    until(lambda: services(runtime) == [], "no service is left")
    assert_nothing_held()


def test_each_node_holds_the_newest_snapshots_of_the_one_before(store: Path, runtime: Path) -> None:
    nodes = replicating(store, count=3)
    for step in (1, 2, 3):
        nodes.save(step)
        for name, ranks in {"b": (0, 1), "c": (2, 3), "a": (4, 5)}.items():
            await_held(nodes.configs[name], step, ranks)
        nodes.await_commit(step)  # a newer save may take the place of one that waits
    for name in "abc":
        assert [steps[-2:] for steps in held(nodes.configs[name]).values()] == [[2, 3], [2, 3]]
        # the answer to a snapshot comes after it is held
        until(lambda n=name: sent(nodes, n)["step"] == 3, "all is known to be held")  # type: ignore[misc]
        said = peers(nodes.configs[name])
        assert said["sent"]["failed"] == said["sent"]["overtaken"] == said["strangers"] == 0
        assert sum(one["bytes"] for one in said["held"]) == 2 * 2 * (1 << 20)
    nodes.close()
    assert_nothing_left(runtime)
    for step in (1, 2, 3):
        assert_exact(store, step, world_size=6, rows=ROWS)


@pytest.mark.parametrize(("lost", "heir"), [("a", "b"), ("c", "a"), ("b", "c")])
def test_what_a_lost_node_has_staged_becomes_durable(
    store: Path, runtime: Path, lost: str, heir: str
) -> None:
    nodes = replicating(store, count=3, slow=lost)
    ranks = tuple(t.rank for t in of_node(nodes, lost))
    nodes.save(1)
    await_held(nodes.configs[heir], 1, ranks)
    assert saved(store) == {}
    lose(nodes, lost)
    until(
        lambda: 1 in saved(store), f"the step is saved by the others: {peers(nodes.configs[heir])}"
    )
    assert_exact(store, 1, world_size=6, rows=ROWS)
    until(lambda: peers(nodes.configs[heir])["taken_over"] == 2, "both ranks are counted")
    nodes.close()
    assert_nothing_left(runtime)


def test_a_new_generation_gets_a_lost_nodes_snapshots_from_the_one_that_holds_them(
    store: Path, runtime: Path
) -> None:
    nodes = replicating(store, slow="a", peer_gone_s=600.0)  # or they are made durable instead
    old = nodes.trainers[0].generation
    nodes.save(1)
    nodes.save(2)
    await_held(nodes.configs["b"], 2, (0, 1))
    lose(nodes, "a")
    for trainer in list(nodes.trainers):
        trainer.close(goodbye=False)
    fresh = replace(nodes.configs["b"], node="c")
    configs = {"c": fresh, "b": nodes.configs["b"]}
    again = Nodes.start(configs, 2, rows=ROWS)
    join(again)
    for trainer in again.trainers[:2]:
        assert np.array_equal(pulled(trainer, old, 2, node=1), content(trainer.rank, 2, ROWS))
    with pytest.raises(ServiceError, match="step 7 of rank 0 is not on this node"):
        pulled(again.trainers[0], old, 7, node=1)
    for trainer in again.trainers:
        trainer.client.resume()
    until(lambda: held(configs["b"]) == {}, "what is of no use is forgotten")
    again.save(3)
    again.await_commit(3)
    again.close()
    assert_nothing_left(runtime)


def test_a_node_that_was_away_for_a_while_goes_on_saving(store: Path, runtime: Path) -> None:
    """Its peer has begun to stand in for it: no save is lost, and none stays with the peer."""
    nodes = replicating(store, slow="a", rate=SLOW, peer_gone_s=0.01)
    step = stand_ins = 0
    while stand_ins < 2:
        step += 1
        assert step < 20, "its peer never stands in for it"
        nodes.save(step)
        await_held(nodes.configs["b"], step, (0, 1))
        stand_ins += stands_in(nodes, step)
        nodes.await_commit(step)
    step += 1
    nodes.save(step)
    nodes.await_commit(step)
    await_held(nodes.configs["b"], step, (0, 1))
    nodes.close()
    assert_nothing_left(runtime)
    for each in range(1, step + 1):
        assert_exact(store, each, world_size=4, rows=ROWS)


def stands_in(nodes: Nodes, step: int) -> bool:
    """Whether node b stands in for node a when a's service is killed. On a busy machine, the step
    may be in the store by then, or the service may be back before b looks."""
    before = peers(nodes.configs["b"])["taken_over"]

    def is_over() -> bool:
        return has_begun() or all(step in trainer.steps("committed") for trainer in nodes.trainers)

    def has_begun() -> bool:
        return bool(peers(nodes.configs["b"])["taken_over"] > before)

    nodes.kill("a")
    until(is_over, "its peer stands in for it, or it goes on by itself")
    return has_begun()


def test_a_peer_that_is_not_there_keeps_nobody_waiting(store: Path, runtime: Path) -> None:
    nodes = replicating(store, dead=("b",))
    for step in range(1, 6):
        nodes.save(step)
        nodes.await_commit(step)
    until(lambda: sent(nodes)["failed"] > 1, "it is tried again")
    assert "cannot connect to a peer at 127.0.0.1 port 1" in sent(nodes)["error"]
    assert sent(nodes)["replicated"] == 0
    nodes.close()
    assert_nothing_left(runtime)


def test_a_peer_that_dies_in_the_middle_of_a_transfer(store: Path, runtime: Path) -> None:
    nodes = replicating(store, peer_rate=256e3)
    nodes.save(1)
    until(lambda: held(nodes.configs["b"]).get(0) == [], "the first replica is coming")
    nodes.kill("b")
    nodes.await_commit(1)  # the trainers there start another service, at the same port
    await_held(nodes.configs["b"], 1, (0, 1))
    assert sent(nodes)["failed"] > 0
    until(lambda: sent(nodes)["error"] is None, "the answer to the second attempt has come")
    nodes.close()
    assert_nothing_left(runtime)


def test_a_replica_slower_than_the_saves_gives_way(store: Path, runtime: Path) -> None:
    """Slots are filled anew under the hands of who sends them: what arrives is whole."""
    nodes = replicating(store, peer_rate=1e6)
    old = nodes.trainers[0].generation
    for step in range(1, 30):
        nodes.save(step)
        time.sleep(0.1)
    nodes.await_commit(29)
    await_held(nodes.configs["b"], 29, (0, 1))
    await_held(nodes.configs["a"], 29, (2, 3))
    assert sent(nodes)["overtaken"] > 0
    # ranks sit where they were: what a peer holds of the other node is asked for by its own rank
    for trainer, node in ((nodes.trainers[0], 1), (nodes.trainers[2], 0)):
        assert np.array_equal(pulled(trainer, old, 29, node), content(trainer.rank, 29, ROWS))
    nodes.close()
    assert_nothing_left(runtime)


def sent(nodes: Nodes, name: str = "a") -> dict[str, Any]:
    found: dict[str, Any] = peers(nodes.configs[name])["sent"]
    return found
