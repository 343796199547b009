"""Modules of FSDP1, which has their parameters in flat ones, and their optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel

from checkpointing import Checkpointer, StructureError
from tests.integration.checkpoint.store_damage import check
from tests.integration.checkpoint.test_ranks import Net, make_state, train
from tests.integration.rank_worlds import assert_same, run_world

OPTIMIZERS = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD}


def make_flat(
    seed: int, *, original: bool, mesh: bool = True, optimizer: str = "AdamW"
) -> dict[str, Any]:
    """The state of a program of FSDP1; `original`: the program sees its own parameters."""
    sharding: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": original}
    if mesh:
        sharding["device_mesh"] = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Net(seed)
    model.inner = FullyShardedDataParallel(model.inner, **sharding)  # type: ignore[assignment]
    wrapped = FullyShardedDataParallel(model, **sharding)
    made = OPTIMIZERS[optimizer](wrapped.parameters(), lr=0.01)
    return {"model": wrapped, "optimizer": made, "progress": {"epoch": 0, "best": 1.0}}


def full(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor of the state, unsharded, by the names that all kinds of sharding have."""
    options = StateDictOptions(full_state_dict=True, flatten_optimizer_state_dict=True)
    weights, kept = get_state_dict(state["model"], state["optimizer"], options=options)
    tensors = {**weights, **{f"optimizer {name}": value for name, value in kept.items()}}
    return {n: t.clone() for n, t in tensors.items() if isinstance(t, torch.Tensor)}


def restored(ckpt: Checkpointer, state: dict[str, Any], step: int) -> dict[str, torch.Tensor]:
    assert ckpt.restore(state) == step
    found = full(state)
    train(state, 1)  # what was restored can be trained on
    return found


def save_and_restore(rank: int, tmp: Path) -> dict[str, torch.Tensor]:
    state = make_flat(1, original=True)
    ckpt = Checkpointer(tmp / "store", run="r")
    assert ckpt.restore(state) is None
    assert not state["optimizer"].state, "asking for a checkpoint must not step the optimizer"
    ckpt.save(0, state)
    assert not state["optimizer"].state, "nor must a save"
    train(state, 2)
    ckpt.save(2, state)
    saved = full(state)
    train(state, 1)  # the staged copy must not see this
    ckpt.wait()
    other = make_flat(2, original=False)
    assert_same(restored(ckpt, other, 2), saved)
    ckpt.save(3, other)
    refuse_others(ckpt)
    ckpt.close()
    return full(other)


def refuse_others(ckpt: Checkpointer) -> None:
    without_mesh = make_flat(4, original=True, mesh=False)
    with pytest.raises(TypeError, match=r"ShardedTensor.*if it is given a device_mesh"):
        ckpt.save(4, without_mesh)


def restore_on_others(rank: int, tmp: Path) -> list[dict[str, torch.Tensor]]:
    ckpt = Checkpointer(tmp / "store", run="r")
    resharded = restored(ckpt, make_flat(5, original=True), 3)
    sharded = make_state(6, shard=True)  # by FSDP2
    answers = [resharded, restored(ckpt, sharded, 3)]
    ckpt.save(4, sharded)
    ckpt.wait()
    back = restored(ckpt, make_flat(7, original=True), 4)
    assert_same(back, full(sharded))
    with pytest.raises(StructureError, match="was saved as AdamW, but is SGD here"):
        ckpt.restore(make_flat(7, original=True, optimizer="SGD"))
    ckpt.close()
    return [*answers, back]


def test_they_are_restored_on_other_numbers_of_ranks_and_by_fsdp2(tmp_path: Path) -> None:
    expected = run_world(2, save_and_restore, tmp_path)[0]
    flat, sharded, newest = run_world(3, restore_on_others, tmp_path)[0]
    assert_same(flat, expected)
    assert_same(sharded, expected)
    assert check(tmp_path / "store") == {0: [], 2: [], 3: [], 4: []}
    ckpt = Checkpointer(tmp_path / "store", run="r")  # one process, no process group
    assert_same(restored(ckpt, make_state(8, shard=False), 4), newest)
    ckpt.close()
