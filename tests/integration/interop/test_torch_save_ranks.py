"""What several ranks saved is exported as the state of one program, its parameters in order."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

from checkpointing import Checkpointer, Store
from checkpointing.interop.torch_save.file_export import export_torch
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint
from tests.integration.interop.test_torch_save import assert_same
from tests.integration.rank_worlds import run_world

WHOLE = StateDictOptions(full_state_dict=True)


def made(shard: bool) -> tuple[nn.Module, torch.optim.AdamW]:
    """The last layer first, in a group of its own; sides that no number of ranks divides."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(31, 17), nn.Linear(17, 1))
    if shard:
        fully_shard(model)
    groups: list[dict[str, Any]] = [{"params": [*model[1].parameters()][::-1], "lr": 0.5}]
    return model, torch.optim.AdamW([*groups, {"params": [*model[0].parameters()]}], lr=0.1)


def save(tmp: Path, state: dict[str, Any]) -> None:
    with closing(Checkpointer(tmp / "store", run="run")) as checkpointer:
        checkpointer.save(1, state)
        checkpointer.wait()


def save_sharded(rank: int, tmp: Path) -> Any:
    model, optimizer = made(shard=True)
    model(torch.ones(3, 31)).sum().backward()
    optimizer.step()
    save(tmp, {"model": model, "optimizer": optimizer})
    whole = get_model_state_dict(model, options=WHOLE)
    return whole, get_optimizer_state_dict(model, optimizer, options=WHOLE)


def exported(tmp: Path) -> Any:
    with closing(Store.open(tmp / "store")) as store:
        checkpoint = Checkpoint(store, newest_first(store, "run")[0].stored)
        export_torch(checkpoint, tmp / "out.pt")
    return torch.load(tmp / "out.pt", weights_only=True)


def test_what_fsdp_saved_loads_into_a_program_on_one_rank(tmp_path: Path) -> None:
    (whole, optimizer_state), _ = run_world(2, save_sharded, tmp_path)
    found, (model, optimizer) = exported(tmp_path), made(shard=False)
    model.load_state_dict(found["model"])
    assert_same(dict(model.state_dict()), dict(whole))
    optimizer.load_state_dict(found["optimizer"])
    other_model, other = made(shard=False)
    set_optimizer_state_dict(other_model, other, optimizer_state, options=WHOLE)
    assert_same(optimizer.state_dict()["state"], other.state_dict()["state"])
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def save_stages(rank: int, tmp: Path) -> None:
    """Each rank has a layer of its own, and one that both have at different places."""
    torch.manual_seed(1)
    shared = nn.Linear(2, 2)
    own = nn.Linear(2, 2)
    layers = {"shared": shared, f"own{rank}": own}
    model = nn.ModuleDict(layers if rank else dict(reversed(layers.items())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    own(shared(torch.ones(1, 2))).sum().backward()
    optimizer.step()
    save(tmp, {"model": model, "optimizer": optimizer})


def test_stages_of_a_pipeline_are_saved_and_keep_the_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_world(2, save_stages, tmp_path)
    found = exported(tmp_path)["optimizer"]
    assert "'optimizer' is exported by the names of its parameters" in caplog.text
    for name in ("shared.weight", "own0.bias", "own1.weight"):
        assert isinstance(found[f"state.{name}.momentum_buffer"], Tensor)
