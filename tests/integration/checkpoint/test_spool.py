"""A job that is killed at its deadline, with its service: what the store had no time for is
restored from the disks of its nodes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from checkpointing import Checkpointer, list_checkpoints
from checkpointing.service.config import Budget
from tests.forkserver import fork_server
from tests.integration.checkpoint.single_process_saves import recorder
from tests.integration.checkpoint.store_damage import check
from tests.integration.rank_worlds import Recorder, run_world, seeded
from tests.integration.service.running_services import kill_all, on_disk, statuses, wait_until_ended

WITHIN_S = 180.0
SLOW = Budget(bytes_per_s=2e4)  # some 60 s for a save


def state_of(step: int) -> dict[str, Any]:
    """What nothing compresses; the same on all ranks, so that each saves a part."""
    bits = torch.randint(0, 256, (1_000_000,), dtype=torch.uint8, generator=seeded(step))
    noise = torch.randn(50_001, generator=seeded(step + 1))
    return {"bits": bits, "noise": {"a": noise, "b": [noise[:7] * 2]}, "step": step}


def assert_is(state: dict[str, Any], step: int) -> None:
    expected = state_of(step)
    assert state["step"] == step
    assert torch.equal(state["bits"], expected["bits"])
    assert torch.equal(state["noise"]["a"], expected["noise"]["a"])
    assert torch.equal(state["noise"]["b"][0], expected["noise"]["b"][0])


def files(tmp: Path) -> list[Path]:
    return on_disk(tmp / "local")


def until(tmp: Path, count: int) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while len(files(tmp)) < count:
        assert time.monotonic() < deadline_s, f"{files(tmp)} and no more"
        time.sleep(0.02)


def save_and_hang(rank: int, world_size: int, tmp: Path, rendezvous: Path) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    ckpt = Checkpointer(tmp / "store", run="r", local=tmp / "local", budget=SLOW)
    assert ckpt.restore(state_of(0)) is None
    ckpt.save(7, state_of(7), metrics={"loss": 0.5}, deadline_s=2.0)
    time.sleep(2 * WITHIN_S)


def save_until_killed(tmp: Path, world_size: int) -> None:
    """A job that is killed with SIGKILL, its service too, as soon as all ranks have copies."""
    context = fork_server()
    rendezvous = tmp / f"rendezvous-{os.urandom(4).hex()}"
    processes = [
        context.Process(target=save_and_hang, args=(rank, world_size, tmp, rendezvous))
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    try:
        until(tmp, world_size)
    finally:
        kill_all()
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        kill_all()  # what they had started again in their last moments
    while [s for s in statuses() if s["root"] == str(tmp / "store")]:
        time.sleep(0.02)


def restore_and_go_on(rank: int, tmp: Path) -> tuple[int | None, str]:
    events, state = Recorder(), state_of(0)
    ckpt = Checkpointer(tmp / "store", run="r", local=tmp / "local", on_event=events)
    step = ckpt.restore(state)
    assert step is not None
    assert_is(state, step)
    ckpt.save(step + 1, state_of(step + 1))
    ckpt.close()
    return step, dict(events)["checkpoint_restored"]["tier"] if rank == 0 else ""


def test_all_are_killed_and_go_on_from_the_disk(tmp_path: Path) -> None:
    save_until_killed(tmp_path, 2)
    assert list_checkpoints(tmp_path / "store") == [] or not any(
        info.state == "committed" for info in list_checkpoints(tmp_path / "store")
    )
    assert run_world(2, restore_and_go_on, tmp_path) == [(7, "memory"), (7, "")]
    wait_until_ended(tmp_path / "store")
    assert files(tmp_path) == []
    assert check(tmp_path / "store")[8] == []


def test_another_world_size_goes_through_the_store(tmp_path: Path) -> None:
    save_until_killed(tmp_path, 2)
    assert run_world(1, restore_and_go_on, tmp_path) == [(7, "store")]
    wait_until_ended(tmp_path / "store")
    assert files(tmp_path) == []
    assert check(tmp_path / "store") == {7: [], 8: []}


def test_what_a_save_is_told_of_its_deadline(tmp_path: Path) -> None:
    events, on_event = recorder()
    budget = Budget(bytes_per_s=1e6)  # a second
    ckpt = Checkpointer(
        tmp_path / "store", run="r", local=tmp_path / "local", budget=budget, on_event=on_event
    )
    ckpt.save(1, state_of(1), deadline_s=0.5)
    ckpt.close()
    said = dict(events)
    assert said["checkpoint_tier"] | {"left_s": 0, "needs_s": 0} == {
        "step": 1,
        "tier": "local",
        "codec": "raw",
        "left_s": 0,
        "needs_s": 0,
    }
    assert said["checkpoint_spooled"]["step"] == 1
    assert said["checkpoint_spooled"]["bytes"] > 1_000_000
    kinds = [kind for kind, _ in events]
    assert kinds.index("checkpoint_spooled") < kinds.index("checkpoint_committed")
    wait_until_ended(tmp_path / "store")
    assert files(tmp_path) == []


def test_without_a_local_disk_the_choice_is_told_too(tmp_path: Path) -> None:
    events, on_event = recorder()
    ckpt = Checkpointer(tmp_path / "store", run="r", on_event=on_event)
    ckpt.save(1, state_of(1), deadline_s=60.0)
    ckpt.close()
    tiers = [fields["tier"] for kind, fields in events if kind == "checkpoint_tier"]
    assert tiers == ["store"]
    assert not (tmp_path / "local").exists()


@pytest.mark.parametrize("bytes_", [0, -1])
def test_a_bound_of_nothing_is_refused(bytes_: int) -> None:
    with pytest.raises(ValueError, match="local_bytes must be above 0"):
        Budget(local_bytes=bytes_)
