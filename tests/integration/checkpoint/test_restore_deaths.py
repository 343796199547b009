"""Ranks that are killed while they share the manifest of a checkpoint: the others say that a rank
has ended, and their state is as it was."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from checkpointing import Checkpointer
from checkpointing.restore.node_manifest import NodeManifest
from tests.forkserver import fork_server
from tests.integration.checkpoint.single_process_saves import restore_one
from tests.integration.checkpoint.store_damage import cut_into_groups
from tests.integration.rank_worlds import JOIN_S
from tests.integration.service.running_services import wait_until_ended

RANKS, PER_NODE = 4, 2


def state_of(value: float) -> dict[str, Any]:
    return {"w": torch.full((1000,), value), "v": torch.full((7,), value)}


def die_before(method: str) -> None:
    """Have this process killed where it would call a method of `NodeManifest`."""

    def kill(self: NodeManifest, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(NodeManifest, method, kill)


def restore(rank: int, root: Path, killed: int, method: str, pipe: Connection) -> None:
    os.environ["HPCKIT_NODE"] = f"node{rank // PER_NODE}"
    meeting = f"file://{root}-{killed}-{method}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    state = state_of(0.0)
    ckpt = Checkpointer(root, run="r")
    if rank == killed:
        die_before(method)
    try:
        ckpt.restore(state)
    except Exception as error:  # noqa: BLE001 - the test compares it
        is_unchanged = not any(tensor.any() for tensor in state.values())
        pipe.send((type(error).__name__, str(error), is_unchanged))
    os._exit(0)


@pytest.mark.parametrize(
    ("killed", "method"),
    [(2, "_read_shared"), (0, "_read_shared"), (2, "share_groups"), (3, "share_groups")],
)
def test_the_others_say_that_a_rank_has_ended(tmp_path: Path, killed: int, method: str) -> None:
    root = tmp_path / "store"
    ckpt = Checkpointer(root, run="r")
    ckpt.save(1, state_of(1.0))
    ckpt.wait()
    ckpt.close()
    wait_until_ended(root)
    cut_into_groups(root)

    context = fork_server()
    pipes = [context.Pipe(duplex=False) for _ in range(RANKS)]
    ranks = [
        context.Process(target=restore, args=(rank, root, killed, method, sender))
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(JOIN_S)
    assert [process.exitcode for process in ranks] == [
        -signal.SIGKILL if rank == killed else 0 for rank in range(RANKS)
    ]
    for rank in set(range(RANKS)) - {killed}:
        kind, text, is_unchanged = pipes[rank][0].recv()
        assert kind == "OtherRankError"
        assert text.startswith("another rank has ended: ")
        assert is_unchanged

    wait_until_ended(root)
    state = state_of(0.0)
    assert restore_one(root, state) == 1
    assert torch.equal(state["w"], state_of(1.0)["w"])
