"""The checkpoint service at work: several nodes and ranks, without torch, on one machine."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from checkpointing.retention import Last
from tests.integration.service.service_nodes import (
    Nodes,
    assert_exact,
    config,
    nodes_at,
    saved,
    status_of,
    until,
)
from tests.services.fault_fs import READ_ONLY, FaultFs, Rule


def test_ten_saves_of_four_ranks_on_two_nodes(store: Path) -> None:
    nodes = Nodes.start(nodes_at(store), per_node=2)
    for step in range(1, 11):
        nodes.save(step)
        nodes.await_commit(step)
    nodes.close()
    assert sorted(saved(store)) == list(range(1, 11))
    for step in range(1, 11):
        assert_exact(store, step, world_size=4)
    assert not list((store / "leases").iterdir())
    assert not list((store / "runs" / "r" / "parts").iterdir())


def test_saves_faster_than_the_store_skip_steps_and_lose_none_that_was_begun(store: Path) -> None:
    nodes = Nodes.start(nodes_at(store), per_node=2)
    for step in range(1, 31):
        for trainer in nodes.trainers:
            trainer.save(step)
    after = itertools.count(31)  # ranks may differ in what they skipped, also in the last of these

    def is_saved() -> bool:
        step = next(after)
        nodes.save(step)
        deadline_s = time.monotonic() + 5.0
        while time.monotonic() < deadline_s:
            if all(step in trainer.steps("committed") for trainer in nodes.trainers):
                return True
            time.sleep(0.05)
        return False

    until(is_saved, "a save without haste is committed on all ranks")
    nodes.close()
    for step in saved(store):
        assert_exact(store, step, world_size=4)


def test_retention_is_applied_after_each_commit(store: Path) -> None:
    nodes = Nodes.start({"a": config(store, keep=(Last(2),))}, per_node=1)
    for step in range(1, 6):
        nodes.save(step)
        nodes.await_commit(step)
    (trainer,) = nodes.trainers
    trainer.hears("checkpoint_pruned", 3)
    nodes.close()
    assert sorted(saved(store)) == [4, 5]


def test_what_the_store_has_already_is_not_written_again(store: Path) -> None:
    nodes = Nodes.start({"a": config(store)}, per_node=1)
    nodes.save(1)
    nodes.await_commit(1)
    (trainer,) = nodes.trainers
    slot = trainer.client.claim(2)
    assert slot is not None
    snapshot = trainer.fill(1, slot)
    trainer.client.staged(type(snapshot)(**{**vars(snapshot), "step": 2}))
    nodes.await_commit(2)
    (first, second) = trainer.kinds("committed")
    assert first["new_bytes"] > 0
    assert second["new_bytes"] == 0
    nodes.close()


@pytest.mark.parametrize("skipping", [1, 3], ids=["on the leading node", "on another node"])
def test_a_step_that_a_rank_skips_is_given_up_and_the_next_is_saved(
    store: Path, skipping: int
) -> None:
    nodes = Nodes.start(nodes_at(store), per_node=2)
    nodes.save(1)
    nodes.await_commit(1)
    for trainer in nodes.trainers:
        if trainer.rank == skipping:
            trainer.client.unstaged(2)
        else:
            trainer.save_when_possible(2)
    nodes.trainers[0].hears("failed", 2)
    nodes.save(3)
    nodes.await_commit(3)
    nodes.close()
    assert sorted(saved(store)) == [1, 3]
    assert_exact(store, 3, world_size=4)


def test_a_store_that_takes_nothing_is_told_and_waited_for(
    store: Path, faulty_folder: FaultFs
) -> None:
    nodes = Nodes.start(nodes_at(faulty_folder.path / "s", count=1), per_node=2)
    nodes.save(1)
    nodes.await_commit(1)
    faulty_folder.set_rules(READ_ONLY)
    nodes.save(2)
    for trainer in nodes.trainers:
        trainer.hears("failed", 2)
    status = status_of(nodes.configs["a"]) or {}
    assert status["failed"] >= 1
    assert "Read-only" in status["error"]
    until(
        lambda: (status_of(nodes.configs["a"]) or {})["waiting"] == [2],
        "it waits between two tries",
    )
    faulty_folder.set_rules()
    nodes.await_commit(2)
    assert (status_of(nodes.configs["a"]) or {})["error"] is None
    nodes.close()
    assert_exact(faulty_folder.path / "s", 2, world_size=2)


def test_trainers_start_while_the_store_takes_nothing(store: Path, faulty_folder: FaultFs) -> None:
    faulty_folder.set_rules(READ_ONLY)
    nodes = Nodes.start(nodes_at(faulty_folder.path / "s", count=1), per_node=1)
    nodes.save(1)
    nodes.trainers[0].hears("failed", 1)
    faulty_folder.set_rules()
    nodes.await_commit(1)
    nodes.close()
    assert_exact(faulty_folder.path / "s", 1, world_size=1)


def test_a_store_that_hangs_keeps_no_trainer_waiting(store: Path, faulty_folder: FaultFs) -> None:
    nodes = Nodes.start({"a": config(faulty_folder.path / "s")}, per_node=2, slots=3)
    nodes.save(1)
    nodes.await_commit(1)
    faulty_folder.set_rules(Rule(("create", "open_write"), hang=True))
    nodes.save(2)
    until(lambda: (status_of(nodes.configs["a"]) or {})["writing"] == 2, "step 2 is on its way")
    pid = (status_of(nodes.configs["a"]) or {})["pid"]
    threads = []
    for step in range(3, 40):
        for trainer in nodes.trainers:
            assert trainer.save(step)  # three slots: one is being written, one is the newest
        threads.append(len(os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208
    status = status_of(nodes.configs["a"]) or {}
    assert status["lag_s"] > 0
    assert status["writing"] == 2
    assert set(status["waiting"]) <= {38, 39}
    assert threads[-1] <= max(threads[:10])
    faulty_folder.set_rules()
    nodes.await_commit(2)
    nodes.await_commit(39)
    nodes.close()
    assert_exact(faulty_folder.path / "s", 39, world_size=2)
