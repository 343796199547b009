"""Saves that were cut short are finished or ended by who goes on with the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from checkpointing import Checkpointer, Last, SaveError, Store, list_checkpoints, saving
from checkpointing.format.names import LEASES, PACKS, parse_pack
from checkpointing.store.catalog import committed
from checkpointing.store.sweep import sweep
from tests.integration.damage import check
from tests.integration.worlds import Recorder

REPOSITORY = Path(__file__).parents[2]

# Saves step 1, and is killed in step 2 when it calls the function that it is told.
KILLED_PROGRAM = """
import os, signal, sys, torch
import checkpointing.saving as saving
from checkpointing import Checkpointer

ckpt = Checkpointer(sys.argv[1], run="r")
ckpt.save(1, {"w": torch.full((1000,), 1.0)})
ckpt.wait()
setattr(saving, sys.argv[2], lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL))
ckpt.save(2, {"w": torch.rand(1000)})
ckpt.wait()
"""


def killed_in(store: Path, function: str) -> None:
    program = [sys.executable, "-c", KILLED_PROGRAM, str(store), function]
    ended = subprocess.run(program, timeout=60, cwd=REPOSITORY, check=False)
    assert ended.returncode == -9


def packs(store: Store) -> set[bytes | None]:
    return {parse_pack(entry.key) for entry in store.storage.list(PACKS)}


def referred(store: Store) -> set[bytes | None]:
    return {pack for found in committed(store)[0] for pack in found.document.packs()}


def test_a_save_that_only_lacked_the_commit_is_committed(tmp_path: Path) -> None:
    killed_in(tmp_path, "commit")
    assert [(i.step, i.state) for i in list_checkpoints(tmp_path)] == [
        (1, "committed"),
        (2, "incomplete"),
    ]
    events, state = Recorder(), {"w": torch.zeros(1000)}
    ckpt = Checkpointer(tmp_path, run="r", on_event=events)
    assert ckpt.restore(state) == 2
    ckpt.close()
    assert events.kinds() == ["checkpoint_adopted", "checkpoint_restored"]
    newest = list_checkpoints(tmp_path)[-1]
    assert events[0][1] == {"step": 2, "id": newest.id}
    assert check(tmp_path) == {1: [], 2: []}
    assert state["w"].std() > 0.1, "these are the random numbers of step 2"


def test_a_save_that_lacked_a_part_never_becomes_a_checkpoint(tmp_path: Path) -> None:
    killed_in(tmp_path, "write_part")
    events, state = Recorder(), {"w": torch.zeros(1000)}
    ckpt = Checkpointer(tmp_path, run="r", on_event=events)
    assert ckpt.restore(state) == 1
    assert events.kinds() == ["save_abandoned", "checkpoint_restored"]
    assert events[0][1]["step"] == 2
    ckpt.save(2, {"w": torch.full((1000,), 3.0)})
    ckpt.close()
    assert check(tmp_path) == {1: [], 2: []}
    assert list_checkpoints(tmp_path)[-1].id != events[0][1]["id"]


def test_what_a_killed_save_wrote_is_removed_once_its_lease_has_run_out(tmp_path: Path) -> None:
    """By the prune of anybody, of another run too; and not before."""
    killed_in(tmp_path, "write_part")
    other = Checkpointer(tmp_path, run="other", keep=[Last(1)])
    store = Store.open(tmp_path)
    other.save(1, {"v": torch.zeros(1)})
    other.wait()
    sweep(store, grace_s=0)
    assert packs(store) > referred(store), "who wrote it may live"
    (lease,) = (tmp_path / LEASES).glob("*.lease")
    long_ago = lease.stat().st_mtime - 3600
    os.utime(lease, (long_ago, long_ago))
    other.save(2, {"v": torch.ones(1)})
    other.close()
    sweep(store, grace_s=0)
    assert packs(store) == referred(store)
    assert not list((tmp_path / LEASES).glob("*.lease"))
    store.close()
    assert check(tmp_path, "r") == {1: []}


@contextmanager
def held_back(function: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Saving stops where it calls `function`, says so by the first event, waits for the second."""
    reached, go_on = threading.Event(), threading.Event()
    original = getattr(saving, function)

    def wait_first(*args: Any, **options: Any) -> Any:
        reached.set()
        assert go_on.wait(60)
        return original(*args, **options)

    with mock.patch.object(saving, function, wait_first):
        yield reached, go_on
        go_on.set()


def take_over(root: Path) -> int | None:
    """What the next incarnation of the job does first; the step that it goes on from."""
    ckpt = Checkpointer(root, run="r")
    step = ckpt.restore({"w": torch.zeros(1000)})
    ckpt.close()
    return step


def test_who_was_taken_over_fails_once_and_then_saves_as_somebody_new(tmp_path: Path) -> None:
    state, events = {"w": torch.rand(1000)}, Recorder()
    old = Checkpointer(tmp_path, run="r", on_event=events)
    old.save(1, state)
    old.wait()
    state["w"].copy_(torch.rand(1000))
    with held_back("write_part") as (reached, go_on):
        old.save(2, state)
        assert reached.wait(60)
        assert take_over(tmp_path) == 1
        go_on.set()
        with pytest.raises(SaveError, match=r"step 2: .* took over the run 'r'"):
            old.wait()
    assert events.kinds()[-1] == "checkpoint_failed"
    assert check(tmp_path) == {1: []}

    # all that it wrote goes; its next save, of the same content, must not count on any of it
    store = Store.open(tmp_path)
    sweep(store, grace_s=0)
    sweep(store, grace_s=0)
    assert packs(store) == referred(store)
    store.close()
    old.save(2, state)
    old.save(3, state)
    old.close()
    assert check(tmp_path) == {1: [], 2: [], 3: []}
    assert len({info.id.partition("-")[2] for info in list_checkpoints(tmp_path)}) == 2
    restored = {"w": torch.zeros(1000)}
    ckpt = Checkpointer(tmp_path, run="r")
    assert ckpt.restore(restored) == 3
    ckpt.close()
    assert torch.equal(restored["w"], state["w"])


def test_a_save_that_is_adopted_under_ones_hands_is_a_success(tmp_path: Path) -> None:
    events = Recorder()
    old = Checkpointer(tmp_path, run="r", on_event=events)
    with held_back("commit") as (reached, go_on):
        old.save(1, {"w": torch.rand(1000)})
        assert reached.wait(60)
        assert take_over(tmp_path) == 1
        go_on.set()
        old.wait()
    old.close()
    assert events.kinds()[-1] == "checkpoint_committed"
    assert check(tmp_path) == {1: []}


def test_an_idle_writer_is_not_in_the_way_and_need_not_know(tmp_path: Path) -> None:
    """Who takes over ends saves, not processes: one that begins its save later is a new one."""
    old = Checkpointer(tmp_path, run="r")
    old.save(1, {"w": torch.ones(1000)})
    old.wait()
    assert take_over(tmp_path) == 1
    old.save(2, {"w": torch.full((1000,), 2.0)})
    old.close()
    assert check(tmp_path) == {1: [], 2: []}
