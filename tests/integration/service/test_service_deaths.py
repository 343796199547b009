"""Services and trainers that are killed: what was staged is kept, and nothing is left behind."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from checkpointing.service.config import ServiceConfig
from checkpointing.service.snapshots import Generation
from checkpointing.store.sessions.session import Session
from checkpointing.store.sessions.session_leases import of_session
from checkpointing.store.store import Store
from tests.effort import times
from tests.integration.service.running_services import IMPATIENT, sabotaged
from tests.integration.service.service_nodes import (
    RUN,
    Nodes,
    Trainer,
    assert_exact,
    assert_nothing_held,
    content,
    generation,
    nodes_at,
    pid_of,
    saved,
    services,
    status_of,
    told_by_services,
    until,
)
from tests.integration.service.service_trainer import TrainerProcess
from tests.stopped_processes import stop

ROWS = 256  # 256 KiB per rank
SLOW = float(2 << 20)  # bytes per second: a node's share of a save takes about 0.1 s
KILLS = times(3)


@pytest.mark.timeout(0 if KILLS > 20 else 600)
@pytest.mark.parametrize("node", ["a", "b"], ids=["that leads", "that follows"])
def test_a_service_killed_at_any_point_of_a_save(store: Path, runtime: Path, node: str) -> None:
    """No other save comes that could take the place of the one under way."""
    seed = int(os.environ.get("HPCKIT_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"HPCKIT_SEED={seed} {KILLS} kills")
    rng = random.Random(seed)
    points = rng.sample([(i + rng.random()) / KILLS for i in range(KILLS)], KILLS)
    nodes = Nodes.start(nodes_at(store, bytes_per_s=SLOW), per_node=2, rows=ROWS)
    nodes.save(0)
    begun_s = time.monotonic()
    nodes.await_commit(0)
    lasts_s = time.monotonic() - begun_s
    for step, point in enumerate(points, start=1):
        nodes.save(step)
        print(f"step {step}: {point:.3f} of {lasts_s:.3f} s")
        time.sleep(point * lasts_s)
        nodes.kill(node)
        nodes.await_commit(step)
    assert {step for t in nodes.trainers for step in t.steps("dropped")} == set()
    # trainers that leave before they notice its death do not clear up after it
    until(lambda: pid_of(nodes.configs[node]) is not None, "the service is there again")
    nodes.close()
    assert sorted(saved(store)) == list(range(KILLS + 1))
    for step in saved(store):
        assert_exact(store, step, world_size=4, rows=ROWS)
    assert_nothing_left(runtime)


@pytest.mark.parametrize("is_killed", [False, True], ids=["is there", "is killed"])
def test_a_save_that_is_committed_but_not_taken_back(
    store: Path, runtime: Path, is_killed: bool
) -> None:
    """As by a leader that was killed between the two: another node has no more to do with it, and
    the next leader takes it back."""
    nodes = Nodes.start(nodes_at(store), per_node=1)
    nodes.save(0)
    nodes.await_commit(0)
    opened, save = Store.open(store), saved(store)[0].stored.save
    Session(opened, RUN, session=save.session).announce(save.manifest())
    if is_killed:
        nodes.kill("a")
        until(lambda: of_session(opened, save.session)[1] is None, "it is taken back")
    nodes.trainers[1].client.unstaged(1)  # so it looks whether that is announced
    time.sleep(0.5)  # in which it could have come upon it often
    assert (status_of(nodes.configs["b"]) or {})["committed"] == 1
    until(lambda: pid_of(nodes.configs["a"]) is not None, "the service is there")
    nodes.close()
    assert_nothing_left(runtime)


@pytest.mark.parametrize("how", ["staged", "filling"])
def test_trainers_are_killed_and_the_next_ones_go_on_from_memory(
    store: Path, runtime: Path, how: str
) -> None:
    configs = nodes_at(store, bytes_per_s=SLOW)
    first = generation(2)
    old = [
        TrainerProcess(config, rank, [rank], first, ROWS)
        for rank, config in enumerate(configs.values())
    ]
    with old[0], old[1]:
        old[0].do("save", 1)
        old[1].do("save", 1)
        old[0].do("await", 1)
        old[0].do("save", 2)
        old[1].do("save", 2)
        if how == "filling":
            old[0].do("save", 3)
            old[1].do("begin", 3)
    second = generation(2)
    trainers = [
        Trainer(config, rank, frozenset([rank]), second, rows=ROWS)
        for rank, config in enumerate(configs.values())
    ]
    until(lambda: 2 in saved(store), "step 2 is committed, though its trainers are dead")
    assert_exact(store, 2, world_size=2, rows=ROWS)
    for trainer in trainers:
        restore_and_go_on(trainer, first, step=2)
    for step in (3, 4):
        for trainer in trainers:
            trainer.save_when_possible(step)
        for trainer in trainers:
            trainer.hears("committed", step)
    for trainer in trainers:
        assert {found.generation for found in trainer.client.snapshots().found} == {second}
        trainer.client.close()
        assert trainer.arena is not None
        assert not trainer.arena.is_closed, "a thread may still allocate its pages"
        trainer.close()
    for step in (3, 4):
        assert_exact(store, step, world_size=2, rows=ROWS)
    assert_nothing_left(runtime)


def restore_and_go_on(trainer: Trainer, old: Generation, step: int) -> None:
    """Read the rank's snapshot from memory, and stay there."""
    left = trainer.client.left
    assert left is not None
    memory = trainer.client.snapshots()
    (found,) = [one for one in memory.found if (one.generation, one.step) == (old, step)]
    assert found.rank == trainer.rank
    cells = left.arena.view(found.slot * left.slot_bytes, left.slot_bytes).view(np.float32)
    assert np.array_equal(cells.reshape(ROWS, -1), content(trainer.rank, step, ROWS))
    own = memory.own[old, step]
    assert own.values == ({"extra/step": step} if trainer.rank == 0 else {})
    assert own.metrics == {"loss": 1.0}
    trainer.arena, trainer.slots, trainer.slot_bytes = left.arena, left.slots, left.slot_bytes
    trainer.client.reuse_arena(left)
    trainer.client.layout(trainer.layout)
    trainer.client.resume()


def test_a_stopped_trainer_keeps_nobody_waiting(store: Path) -> None:
    """It is as one that hangs: the other ranks' saves go to slots until there are none."""
    (config,) = nodes_at(store, count=1).values()
    made = generation(2)
    with TrainerProcess(config, 1, [0, 1], made, ROWS) as one:
        zero = Trainer(config, 0, frozenset([0, 1]), made, rows=ROWS)
        zero.register_arena()
        zero.save_when_possible(1)
        one.do("save", 1)
        zero.hears("committed", 1)
        stop(one._process.pid)
        zero.save_when_possible(2)
        until(lambda: (status_of(config) or {})["writing"] == 2, "step 2 is begun")
        assert [zero.client.claim(step) for step in (3, 4)] != []  # they are answered
        one._process.send_signal(signal.SIGCONT)
        one.do("save", 2)
        zero.hears("committed", 2)
        zero.close()
    assert_exact(store, 2, world_size=2, rows=ROWS)


def test_an_earlier_trainer_that_lives_on_is_kept_out(store: Path) -> None:
    config = ServiceConfig(str(store), RUN)
    with sabotaged(store, IMPATIENT):
        keep_out(config)
    assert sorted(saved(store)) == [1, 3, 4]


def keep_out(config: ServiceConfig) -> None:
    old = Trainer(config, 0, frozenset([0]), generation(1))
    old.register_arena()
    old.save_when_possible(1)
    old.hears("committed", 1)
    new = Trainer(config, 0, frozenset([0]), generation(1))
    assert new.client.left is None  # the old one may write to it at any time
    assert new.client.snapshots().found == ()
    new.register_arena()
    assert old.client.claim(2) is None
    new.save_when_possible(3)
    new.hears("committed", 3)
    old.close()
    new.save_when_possible(4)
    new.hears("committed", 4)
    new.close()


def assert_nothing_left(runtime: Path) -> None:
    try:
        until(lambda: not services(runtime), "all services have ended")
    except AssertionError as error:
        raise AssertionError(f"{error}: {told_by_services(runtime)}") from error
    assert list(runtime.iterdir()) == []
    assert_nothing_held()
