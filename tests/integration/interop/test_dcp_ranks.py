"""DCP on two real ranks: folders of FSDP in and out, and DCP on a store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from checkpointing import SaveError, Store
from checkpointing.interop.dcp import StoreReader, StoreWriter, export_dcp, import_dcp
from checkpointing.store.catalog import committed
from tests.integration.interop.interop_checkpoints import contents, described, flat, opened
from tests.integration.rank_worlds import run_world


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


WHOLE = {"w": (64, 48), "v": (13,), "cube": (5, 9, 6), "one": (1, 4)}


def whole_state() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    return {name: torch.randn(shape, generator=generator) for name, shape in WHOLE.items()}


def sharded(placements: Mapping[str, Any], fill: bool) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state: dict[str, Any] = {}
    for name, tensor in whole_state().items():
        start = tensor if fill else torch.zeros_like(tensor)
        state[name] = distribute_tensor(start, mesh, [placements[name]])
    return {"model": state, "step": 5 if fill else 0}


ROWS = {"w": Shard(0), "v": Shard(0), "cube": Shard(0), "one": Shard(0)}
COLUMNS = {"w": Shard(1), "v": Replicate(), "cube": Shard(2), "one": Replicate()}


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model under FSDP, one step old; its sides divide by no number of ranks."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(31, 17), nn.Linear(17, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(3, 31)).sum().backward()
    optimizer.step()
    return model, optimizer


def fsdp_state() -> dict[str, Any]:
    model, optimizer = trained()
    flat_names = StateDictOptions(flatten_optimizer_state_dict=True)
    optim = get_optimizer_state_dict(model, optimizer, options=flat_names)
    return {"model": get_model_state_dict(model), "optim": optim, "step": 5}


def save_by_dcp(rank: int, tmp: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    state = fsdp_state()
    dcp_save(state, checkpoint_id=tmp / "dcp")
    return gathered(state)


def load_by_dcp(rank: int, tmp: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    state = fsdp_state()
    for thing in flat(state).values():
        if isinstance(thing, Tensor):
            with torch.no_grad():
                thing.zero_()
    dcp_load(state, checkpoint_id=tmp / "exported")
    return gathered(state)


def gathered(state: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """All tensors, whole, by full name."""
    tensors = {n: t for n, t in flat(state).items() if isinstance(t, Tensor)}
    full = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}
    return {name: described(tensor) for name, tensor in full.items()}


def save_to_store(rank: int, tmp: Path) -> None:
    store = Store.open(tmp / "store")
    dcp_save(sharded(ROWS, fill=True), storage_writer=StoreWriter(store, "dcp", 5))


def load_from_store(rank: int, tmp: Path) -> Any:
    state = sharded(COLUMNS, fill=False)
    dcp_load(state, storage_reader=StoreReader(Store.open(tmp / "store"), "dcp", 5))
    assert state.pop("step") == 5
    return gathered(state)


def fail_on_rank_1(rank: int, tmp: Path) -> str:
    store = Store.open(tmp / "store")
    writer = StoreWriter(store, "dcp", 6)
    state = sharded(ROWS, fill=True)
    if rank == 1:
        mock.patch.object(writer, "write_data", broken).start()
    try:
        dcp_save(state, storage_writer=writer)
    except CheckpointException as error:
        writer.close()
        return str(error)
    return "saved"


def broken(*_: object) -> Any:
    raise SaveError("the disk of rank 1 is gone")


def wanted_state() -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {f"model/{name}": described(tensor) for name, tensor in whole_state().items()}


def test_two_ranks_of_fsdp_come_in_and_go_out(store: Store, tmp_path: Path) -> None:
    wanted = run_world(2, save_by_dcp, tmp_path)[0]
    assert "optim/state.0.weight.exp_avg" in wanted
    checkpoint = opened(store, import_dcp(tmp_path / "dcp", store, "run", 5))
    assert contents(checkpoint) == wanted
    assert checkpoint.values()["step"] == 5
    export_dcp(checkpoint, tmp_path / "exported")
    for loaded in run_world(2, load_by_dcp, tmp_path):
        assert loaded == wanted


def test_two_ranks_of_dcp_save_to_and_load_from_a_store(store: Store, tmp_path: Path) -> None:
    run_world(2, save_to_store, tmp_path)
    (found,) = committed(store, "dcp")[0]
    assert found.document.header.world_size == 2
    checkpoint = opened(store, found.stored.save)
    assert contents(checkpoint) == wanted_state()
    assert checkpoint.values() == {"step": 5}
    assert store.storage.list("leases/") == []
    assert [e.key for e in store.storage.list("runs/") if "/parts/" in e.key] == []
    for loaded in run_world(2, load_from_store, tmp_path):
        assert loaded == wanted_state()
    answers = run_world(2, fail_on_rank_1, tmp_path)
    assert all("the disk of rank 1 is gone" in answer for answer in answers)
    assert [f.stored.save.step for f in committed(store, "dcp")[0]] == [5]
    assert store.storage.list("leases/") == []
