"""Ranks on several nodes whose states pass through buckets: they save together, or none does."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from checkpointing import Checkpointer, SaveError, list_checkpoints
from checkpointing.ranks.failure_watch import FailureWatch
from checkpointing.ranks.rank_group import RankGroup
from tests.forkserver import fork_server
from tests.integration.checkpoint.store_damage import check
from tests.integration.rank_worlds import Recorder, assert_same, run_world, whole
from tests.integration.service.running_services import Hold, sabotaged
from tests.integration.service.service_nodes import until

READING = ("registry.bucket_stream", "_piece")
PER_NODE = 2


def on_node(rank: int, per_node: int = PER_NODE) -> None:
    """This process is on a node of its own, or shares it with the next ones."""
    os.environ["HPCKIT_NODE"] = f"node{rank // per_node}"


def make_state(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(500, 1100), nn.ReLU(), nn.Linear(1100, 501))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return {
        "model": model,
        "optimizer": optimizer,
        # the same on all ranks, and divided among them
        "table": torch.randn(3000, 700, generator=torch.Generator().manual_seed(seed)),
        "step": 0,
    }


def train(state: dict[str, Any]) -> None:
    torch.manual_seed(state["step"])
    state["model"](torch.randn(4, 500)).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()
    state["table"] += 1e-4
    state["step"] += 1


def all_of(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {**whole(state), "table": state["table"].clone()}


def save_both_ways(rank: int, tmp: Path) -> dict[str, torch.Tensor]:
    on_node(rank)
    state, stored = make_state(1), []
    for staging in ("buckets", "slots"):
        events = Recorder()
        ckpt = Checkpointer(tmp / "store", run="r", staging=staging, on_event=events)
        assert ckpt.restore(state) == (None if staging == "buckets" else 2)
        for _ in range(2 if staging == "buckets" else 1):
            if staging == "buckets":
                train(state)
            step = state["step"] + (staging == "slots")
            ckpt.save(step, state, metrics={"loss": 1.0})
            ckpt.wait()
        stored.append([f["new_bytes"] for kind, f in events if kind == "checkpoint_committed"])
        ckpt.close()
    if rank == 0:
        assert [len(of_one_way) for of_one_way in stored] == [2, 1]
        assert stored[1] == [0], "the slots have not stored a single new chunk"
    return all_of(state)


def restore(rank: int, tmp: Path) -> dict[str, torch.Tensor]:
    on_node(rank, per_node=1)
    state = make_state(9)
    ckpt = Checkpointer(tmp / "store", run="r", staging="buckets")
    assert ckpt.restore(state) == 3
    train(state)
    ckpt.save(4, state)
    ckpt.close()
    return all_of(state)


def test_two_nodes_save_what_slots_would_and_three_restore_it(tmp_path: Path) -> None:
    saved = run_world(4, save_both_ways, tmp_path)
    assert check(tmp_path / "store") == {1: [], 2: [], 3: []}
    for theirs in saved[1:]:
        assert_same(theirs, saved[0])
    restored = run_world(3, restore, tmp_path)
    for theirs in restored[1:]:
        assert_same(theirs, restored[0])
    assert check(tmp_path / "store") == {1: [], 2: [], 3: [], 4: []}


# --- one of them fails --------------------------------------------------------------------------


def one_nodes_service_dies(rank: int, tmp: Path) -> str:
    on_node(rank, per_node=1)
    root, folder = tmp / "store", tmp / f"rank{rank}"
    folder.mkdir()
    hold, state = Hold(folder), make_state(1)
    with sabotaged(root, hold.sabotage(READING)):
        dist.barrier()
        ckpt = Checkpointer(root, run="r", staging="buckets")
        ckpt.save(1, state)
        ckpt.wait()
        service = pid_of_mine(ckpt)
        if rank == 1:
            hold.close()
            threading.Thread(target=kill_when_it_reads, args=(hold, service)).start()
        dist.barrier()
        train(state)
        ckpt.save(2, state)  # returns on both
        with pytest.raises(SaveError) as caught:
            ckpt.wait()
        if rank == 1:
            hold.release()
        until(lambda: ckpt._client.is_connected, "each node has a service again")
        dist.barrier()
        ckpt.save(3, state)
        ckpt.close()
    return str(caught.value)


def kill_when_it_reads(hold: Hold, service: int) -> None:
    hold.wait()
    os.kill(service, signal.SIGKILL)


def pid_of_mine(ckpt: Checkpointer) -> int:
    return int(ckpt._client.status()["pid"])


def test_a_service_that_dies_fails_the_save_on_all_nodes(tmp_path: Path) -> None:
    texts = run_world(2, one_nodes_service_dies, tmp_path)
    for text in texts:
        assert "rank 1: the node's checkpoint service has died while it read the state" in text
    assert check(tmp_path / "store") == {1: [], 3: []}


def _save_until_killed(rank: int, tmp: Path) -> None:
    on_node(rank, per_node=1)
    dist.init_process_group("gloo", init_method=f"file://{tmp}/meet", rank=rank, world_size=2)
    ckpt = Checkpointer(tmp / "store", run="r", staging="buckets")
    state = make_state(1)
    ckpt.save(1, state)
    ckpt.wait()
    if rank == 0:
        (tmp / "gate").touch()
    dist.barrier()
    ckpt.save(2, state)
    try:
        ckpt.wait()
    except SaveError as error:
        (tmp / f"told-{rank}").write_text(str(error))
    os._exit(0)


def test_a_rank_that_dies_keeps_no_other_waiting(tmp_path: Path) -> None:
    """The service of node 0 reads nothing, so rank 0 stands in its save when rank 1 dies."""
    root, hold = tmp_path / "store", Hold(tmp_path)
    context = fork_server()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HPCKIT_NODE", "node0")
        with sabotaged(root, hold.sabotage(READING)):
            ranks = [
                context.Process(target=_save_until_killed, args=(rank, tmp_path)) for rank in (0, 1)
            ]
            for process in ranks:
                process.start()
            try:
                hold.wait()
                ranks[1].kill()
                ranks[0].join(180)
                assert ranks[0].exitcode == 0
            finally:
                for process in ranks:
                    process.kill()
                    process.join()
            assert "another rank has ended" in (tmp_path / "told-0").read_text()
            hold.release()
    assert [i.step for i in list_checkpoints(root) if i.state == "committed"] == [1]


def different_steps(rank: int, tmp: Path) -> str:
    on_node(rank, per_node=1)
    ckpt = Checkpointer(tmp / "store", run="r", staging="buckets")
    ckpt.save(1 + rank, {"w": torch.ones(10)})
    with pytest.raises(SaveError) as caught:
        ckpt.wait()
    ckpt.save(5, {"w": torch.ones(10)})
    ckpt.close()
    return str(caught.value)


def test_ranks_that_save_different_steps_save_none(tmp_path: Path) -> None:
    for text in run_world(2, different_steps, tmp_path):
        assert "different steps" in text
    assert check(tmp_path / "store") == {5: []}


def watched(rank: int, tmp: Path) -> list[str | None]:
    """Three rounds: nobody fails, one does while the other is busy, nobody does again."""
    ranks, found = RankGroup(), []
    for failing in (None, 1, None):
        stopped = threading.Event()
        watch = FailureWatch(ranks, lambda why, stopped=stopped: stopped.set())  # type: ignore[misc]
        if failing is not None and rank != failing:
            assert stopped.wait(180)
        found.append(watch.finish("it broke" if rank == failing else None))
    return found


def test_a_watch_ends_alike_on_all_ranks(tmp_path: Path) -> None:
    assert run_world(3, watched, tmp_path) == [[None, "rank 1: it broke", None]] * 3
