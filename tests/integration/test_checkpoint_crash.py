"""Processes that die, disks that fill up: the last checkpoint stays whole."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpointing import Checkpointer, Last, SaveError, Store, list_checkpoints
from checkpointing.format.names import pack_key
from checkpointing.store.catalog import committed
from checkpointing.store.sweep import sweep
from tests.integration.damage import check

KILLS = 6
REPOSITORY = Path(__file__).parents[2]
WORDS = 1_000_000  # 4 MB: most of the time goes into writing


def weights(step: int) -> torch.Tensor:
    """Random bits, which nothing compresses."""
    bits = torch.randint(
        -(1 << 31), 1 << 31, (WORDS,), generator=torch.Generator().manual_seed(step)
    )
    return bits.to(torch.int32)


def save_for_ever(store: Path, first_step: int, ready: Any) -> None:
    torch.set_num_threads(1)

    def on_event(kind: str, **fields: Any) -> None:
        if kind == "checkpoint_committed":
            ready.set()

    ckpt = Checkpointer(store, run="r", keep=[Last(2)], on_event=on_event)
    state = {"w": torch.zeros(WORDS, dtype=torch.int32), "step": -1}
    restored = ckpt.restore(state)
    assert restored == (first_step if first_step else None)
    for step in range(first_step + 1, 1_000_000):
        state |= {"w": weights(step), "step": step}
        ckpt.save(step, state)


def test_sigkill_at_any_moment_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["checkpointing.checkpointer"])
    moments = random.Random(0)
    step = 0
    for _ in range(KILLS):
        ready = context.Event()
        process = context.Process(target=save_for_ever, args=(tmp_path, step, ready))
        process.start()
        assert ready.wait(60), f"exit code {process.exitcode}"
        time.sleep(moments.uniform(0.05, 0.4))  # any moment will do
        assert process.exitcode is None
        process.kill()
        process.join()

        found = check(tmp_path)
        assert not any(found.values())
        state: dict[str, Any] = {"w": torch.zeros(WORDS, dtype=torch.int32), "step": -1}
        ckpt = Checkpointer(tmp_path, run="r")
        restored = ckpt.restore(state)
        assert restored is not None
        assert restored == state["step"] > step
        assert torch.equal(state["w"], weights(restored))
        assert restored >= max(found)  # one that only lacked the commit is committed now
        ckpt.close()
        step = restored
    assert step >= KILLS
    # what the killed saves left goes with the next prunes
    assert_nothing_but_checkpoints(tmp_path)
    assert max(check(tmp_path)) == step


def assert_nothing_but_checkpoints(root: Path) -> None:
    """Every object is the store's own, a manifest, or a pack that one refers to, after two sweeps.

    Of the sessions that were ended their fences stay for a week, and so do the marks that stand in
    the place of manifests that never came.
    """
    store = Store.open(root)
    sweep(store, grace_s=0)
    sweep(store, grace_s=0)
    manifests = {s.key for s in store.manifests()}
    live = {pack_key(p) for found in committed(store)[0] for p in found.document.packs()}
    objects = {entry.key for entry in store.storage.list("")}
    store.close()
    rest = objects - manifests - live - {"hpckit.json"}
    assert {key for key in rest if not key.endswith(".fence")} == set()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_full_disk_costs_one_save_and_nothing_else(small_disk: Path) -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    ckpt = Checkpointer(small_disk, run="r", on_event=lambda kind, **f: events.append((kind, f)))
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
    failed = [f for kind, f in events if kind == "checkpoint_failed"]
    assert [f["step"] for f in failed] == [2]
    assert check(small_disk) == {1: []}
    blocker.unlink()
    ckpt.save(3, state)
    ckpt.close()
    restored = {"w": torch.zeros(WORDS, dtype=torch.int32)}
    ckpt = Checkpointer(small_disk, run="r")
    assert ckpt.restore(restored) == 3
    ckpt.close()
    assert torch.equal(restored["w"], weights(3))


EXIT_PROGRAM = """
import sys, time, torch
import checkpointing.background, checkpointing.saving as saving
from checkpointing import Checkpointer

path, how_long_s = sys.argv[1], float(sys.argv[2])
checkpointing.background.EXIT_WAIT_S = float(sys.argv[3])
write = saving.write

def slow(*args):
    time.sleep(how_long_s)
    return write(*args)

ckpt = Checkpointer(path, run="r")
ckpt.save(1, {"w": torch.ones(3)})
ckpt.wait()
saving.write = slow
ckpt.save(2, {"w": torch.full((3,), 2.0)})
"""

LONELY_PROGRAM = """
import sys, time, torch, torch.distributed as dist
import checkpointing.background
from checkpointing import Checkpointer

path, rank = sys.argv[1], int(sys.argv[2])
checkpointing.background.EXIT_WAIT_S = 0.2
dist.init_process_group("gloo", init_method=f"file://{path}/rendezvous", rank=rank, world_size=2)
ckpt = Checkpointer(path + "/store", run="r")
if rank == 0:
    ckpt.save(1, {"w": torch.ones(3)})  # rank 1 never takes part
    sys.exit(5)
sys.stdin.read()
"""


BEREFT_PROGRAM = """
import os, signal, sys, torch, torch.distributed as dist
import checkpointing.saving as saving
from checkpointing import Checkpointer, SaveError

path, rank, victim = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{path}/rendezvous", rank=rank, world_size=2)
ckpt = Checkpointer(path + "/store", run="r")
ckpt.save(1, {"w": torch.ones(3)})
ckpt.wait()
if rank == 1:
    setattr(saving, victim, lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL))
ckpt.save(2, {"w": torch.full((3,), 2.0), "v": torch.rand(5)})
try:
    ckpt.wait()
except SaveError as error:
    print(error)
    os._exit(7)
"""


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", program, *map(str, arguments)]


@pytest.mark.parametrize(
    ("how_long_s", "exit_wait_s", "steps"), [(0.5, 60, [1, 2]), (3600, 0.2, [1])]
)
def test_exit_without_close_waits_but_not_for_ever(
    tmp_path: Path, how_long_s: float, exit_wait_s: float, steps: list[int]
) -> None:
    program = python(EXIT_PROGRAM, tmp_path, how_long_s, exit_wait_s)
    subprocess.run(program, check=True, timeout=60, cwd=REPOSITORY)
    assert check(tmp_path) == {step: [] for step in steps}


def test_a_rank_can_exit_while_its_peer_is_silent(tmp_path: Path) -> None:
    silent = subprocess.Popen(
        python(LONELY_PROGRAM, tmp_path, 1),
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
    )
    try:
        leaving = subprocess.run(
            python(LONELY_PROGRAM, tmp_path, 0), timeout=60, cwd=REPOSITORY, check=False
        )
        assert leaving.returncode == 5
        assert silent.poll() is None
    finally:
        silent.communicate(b"")
    assert silent.returncode == 0
    assert list_checkpoints(tmp_path / "store") == []


@pytest.mark.parametrize("function", ["write", "write_part"])
def test_a_peer_that_dies_in_a_save_is_noticed_at_once(tmp_path: Path, function: str) -> None:
    ranks = [
        subprocess.Popen(
            python(BEREFT_PROGRAM, tmp_path, rank, function), cwd=REPOSITORY, stdout=subprocess.PIPE
        )
        for rank in (0, 1)
    ]
    try:
        said = [process.communicate(timeout=60)[0].decode() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [7, -9]
    assert said[0].startswith("saving step 2: ")
    assert check(tmp_path / "store") == {1: []}
