"""Processes that die, disks that fill up: the last checkpoint stays whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from checkpointing import Checkpointer, SaveError, Store, list_checkpoints
from checkpointing.format.names import pack_key
from checkpointing.store.catalog import committed
from checkpointing.store.sweep import sweep
from tests.integration.checkpoints import restore_one
from tests.integration.crashing import WORDS, Trainers, assert_is, blank, weights
from tests.integration.damage import check
from tests.integration.forked import run_forked
from tests.integration.nodeservices import pid_of
from tests.integration.worlds import Recorder

SAVED_S = 60.0


@pytest.mark.parametrize("world_size", [1, 2])
def test_sigkill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path, world_size: int) -> None:
    """Of trainers, of the service, and of both. What was staged is not lost with the trainers."""
    moments, root = random.Random(world_size), tmp_path / "store"
    newest, tiers = -1, []
    for victims in ["trainers", "service", "both", "rank", "trainers", "trainers"]:
        with Trainers(tmp_path, world_size) as trainers:
            trainers.wait_for_commit(newest)
            step, tier = trainers.said[0].restored or (None, "")
            assert step is not None
            assert step >= newest
            assert all(said.restored and said.restored[0] == step for said in trainers.said)
            tiers.append(tier)
            time.sleep(moments.uniform(0.05, 0.4))  # any moment will do
            if victims in ("service", "both"):
                os.kill(pid_of(root), signal.SIGKILL)
            if victims == "service":  # another one goes on
                trainers.wait_for_commit(max(max(said.staged) for said in trainers.said))
            if victims == "rank":
                trainers.processes[-1].kill()
            else:
                trainers.kill()
            for process in trainers.processes:
                process.join()
            newest = trainers.newest_committed()
            if victims != "both":
                newest = max(newest, trainers.newest_staged())
    assert tiers == ["none", "memory", "memory", "store", "memory", "memory"]
    state = blank()
    ckpt = Checkpointer(root, run="r")
    restored = ckpt.restore(state)
    assert restored is not None
    assert restored >= newest
    assert_is(state, restored)
    ckpt.save(restored + 1, state)
    ckpt.close()
    assert not any(check(root).values())
    assert_nothing_but_checkpoints(root)


def assert_nothing_but_checkpoints(root: Path) -> None:
    """Every object is the store's own, a manifest, or a pack that one refers to, after two sweeps.

    Of the sessions that were ended their fences stay for a week, and so do the marks that stand in
    the place of manifests that never came, and the last owners of the run.
    """
    store = Store.open(root)
    sweep(store, grace_s=0)
    sweep(store, grace_s=0)
    manifests = {s.key for s in store.manifests()}
    live = {pack_key(p) for found in committed(store)[0] for p in found.document.packs()}
    objects = {entry.key for entry in store.storage.list("")}
    store.close()
    rest = objects - manifests - live - {"hpckit.json"}
    assert {key for key in rest if not key.endswith(".fence") and "/owners/" not in key} == set()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_costs_one_save_and_nothing_else(small_disk: Path) -> None:
    events = Recorder()
    ckpt = Checkpointer(small_disk, run="r", on_event=events)
    state = {"w": weights(1)}
    ckpt.save(1, state)
    ckpt.wait()
    blocker = small_disk / "somebody-else"
    blocker.write_bytes(bytes(2 << 20))
    state["w"].copy_(weights(2))
    ckpt.save(2, state)
    state["w"].copy_(weights(3))  # training goes on
    with pytest.raises(SaveError, match="No space left on device"):
        ckpt.wait()
    assert {f["step"] for kind, f in events if kind == "checkpoint_failed"} == {2}
    assert check(small_disk) == {1: []}
    blocker.unlink()
    wait_for_commit(events, 2)  # the service has not forgotten
    ckpt.close()
    restored = {"w": torch.zeros(WORDS, dtype=torch.int32)}
    assert restore_one(small_disk, restored) == 2
    assert torch.equal(restored["w"], weights(2))


def wait_for_commit(events: Recorder, step: int) -> None:
    deadline_s = time.monotonic() + SAVED_S
    while not any(k == "checkpoint_committed" and f["step"] == step for k, f in list(events)):
        assert time.monotonic() < deadline_s, events.kinds()
        time.sleep(0.05)


# Begins a save whose copy is slow, and ends without close() while it is under way
EXIT_PROGRAM = """
from checkpointing import staging
from checkpointing.copying import copy_quietly

def slow(targets, sources):
    time.sleep(1.0)
    copy_quietly(targets, sources)

how, = arguments
staging.Stager.__init__.__kwdefaults__["copy_later"] = slow
model = torch.nn.Linear(3, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
ckpt = Checkpointer(tmp / how, run="r")
torch.nn.init.constant_(model.weight, 2.0)
ckpt.save(2, {"model": model, "optimizer": optimizer})
if how == "raise":
    raise SystemExit("an error")
if how == "fork" and os.fork() == 0:
    sys.exit(0)  # a child that leaves first
if how == "drop":
    del ckpt
"""


def test_exit_without_close_loses_nothing(tmp_path: Path) -> None:
    ways = ["end", "raise", "fork", "drop"]
    assert run_forked(tmp_path, EXIT_PROGRAM, *([how] for how in ways)) == [0, 1, 0, 0]
    for how in ways:
        model, events = torch.nn.Linear(3, 1, bias=False), Recorder()
        state = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.0)}
        assert restore_one(tmp_path / how, state, on_event=events) == 2
        restored = dict(events)["checkpoint_restored"]
        assert restored["tier"] == "memory"
        assert torch.equal(model.weight, torch.full((1, 3), 2.0))
        assert check(tmp_path / how) == {2: []}


LONELY_PROGRAM = """
rank, = map(int, arguments)
dist.init_process_group("gloo", init_method=f"file://{tmp}/rendezvous", rank=rank, world_size=2)
ckpt = Checkpointer(tmp / "store", run="r")
state = {"w": torch.ones(3)}
ckpt.restore(state)
if rank == 0:
    ckpt.save(1, state)  # rank 1 never takes part
    sys.exit(5)
while not (tmp / "ended-0").exists():
    time.sleep(0.05)
"""


def test_a_rank_can_exit_while_its_peer_is_silent(tmp_path: Path) -> None:
    assert run_forked(tmp_path, LONELY_PROGRAM, [0], [1]) == [5, 0]
    assert not [i for i in list_checkpoints(tmp_path / "store") if i.state == "committed"]


BEREFT_PROGRAM = """
from checkpointing.service.client import Client

rank, victim = int(arguments[0]), arguments[1]
rendezvous = f"file://{tmp}/rendezvous-{victim}"
dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
ckpt = Checkpointer(tmp / victim, run="r")
ckpt.save(1, {"w": torch.ones(3)})
ckpt.wait()
if rank == 1:
    setattr(Client, victim, lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL))
ckpt.save(2, {"w": torch.full((3,), 2.0)})
try:
    ckpt.wait()
except SaveError as error:
    (tmp / f"said-{victim}").write_text(str(error))
    os._exit(7)
"""


def test_a_peer_that_dies_in_a_save_is_noticed_at_once(tmp_path: Path) -> None:
    functions = ["claim", "staged"]
    arguments = [[rank, function] for function in functions for rank in (0, 1)]
    assert run_forked(tmp_path, BEREFT_PROGRAM, *arguments) == [7, -9, 7, -9]
    for function in functions:
        said = (tmp_path / f"said-{function}").read_text()
        assert said.startswith("saving step 2: another rank is gone: ")
        assert check(tmp_path / function) == {1: []}
