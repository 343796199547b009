"""What is equal on many ranks is sent between them once."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from checkpointing import Checkpointer
from checkpointing.layout.tensor_layout import Structure
from checkpointing.ranks.rank_group import RankGroup
from tests.integration.rank_worlds import run_world


def gather_alike(rank: int, tmp: Path) -> tuple[list[str], list[str], int]:
    ranks, mine = RankGroup(), "xyxz"[rank]
    assert ranks.control is not None
    with mock.patch.object(ranks.control, "all_gather", wraps=ranks.control.all_gather) as sent:
        found = ranks.all_gather_alike(mine, mine.encode, ranks.control)
        _, things = sent.call_args_list  # the digests, then what they stand for
        count = int(things.args[0] is not None)
    distinct = ranks.gather_distinct(mine, mine.encode, ranks.control)
    return found, distinct, count


def test_each_has_that_of_all_and_the_first_of_equal_ones_sends(tmp_path: Path) -> None:
    answers = run_world(4, gather_alike, tmp_path)
    assert [found for found, _, _ in answers] == [["x", "y", "x", "z"]] * 4
    assert [distinct for _, distinct, _ in answers] == [["x", "y", "z"]] * 4
    assert [count for _, _, count in answers] == [1, 1, 0, 1]


def restore_counted(rank: int, tmp: Path) -> tuple[int, int]:
    """How many structures this rank unpickles in a restore from the store, and the step."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    made = {"w": distribute_tensor(torch.arange(64.0), mesh, [Shard(0)])}
    received: list[bytes] = []

    def set_state(self: Structure, state: dict[str, Any]) -> None:
        received.append(state["digest"])
        vars(self).update(state)

    ckpt = Checkpointer(tmp / "store", run="r")
    with mock.patch.object(Structure, "__setstate__", set_state, create=True):
        step = ckpt.restore(made) or 0
    if not step:
        ckpt.save(1, made)
        ckpt.wait()
    ckpt.close()
    assert torch.equal(made["w"].full_tensor(), torch.arange(64.0))
    return step, len(received)


def test_a_rank_receives_the_structures_of_equal_ranks_once(tmp_path: Path) -> None:
    assert [step for step, _ in run_world(4, restore_counted, tmp_path)] == [0] * 4
    answers = run_world(4, restore_counted, tmp_path)
    assert [step for step, _ in answers] == [1] * 4
    # in the plan of saves, and in that of reads
    assert [count for _, count in answers] == [2, 2, 2, 2]
