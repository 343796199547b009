from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.nn.parallel import DistributedDataParallel

from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.state.item_adapters import ModuleItem, to_save
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.structure_comparison import Inventory, difference
from tests.unit.checkpointing.silent_process_group import silent_world


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(module.parameters())


def stepped(module: nn.Module) -> torch.optim.Optimizer:
    optimizer = adam(module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def test_names() -> None:
    model = nn.Linear(2, 1)
    leaves = to_save({"model": model, "optimizer": stepped(model), "a/b": torch.zeros(1), "n": 3})
    assert {"model/weight", "optimizer/state.bias.exp_avg", "a~1b"} <= leaves.tensors.keys()
    assert leaves.tensors["model/weight"].data_ptr() == model.weight.data_ptr()
    assert leaves.values["optimizer/param_groups.bias.betas"] == {"$tuple": [0.9, 0.999]}
    assert leaves.values["n"] == 3


class Holder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Named(nn.Module):
    """Has a part that is named as DistributedDataParallel names what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.head = nn.BatchNorm1d(3), checkpoint_wrapper(nn.Linear(3, 2))


@pytest.mark.parametrize("wrap", [lambda module: module, torch.compile, nn.Sequential])
def test_a_modules_state_is_the_one_that_torch_gives(wrap: Callable[[nn.Module], Any]) -> None:
    module = wrap(Named())
    item = ModuleItem(module)
    for _ in range(3):
        wanted: dict[str, Any] = get_model_state_dict(module)
        found = item.to_save()
        assert found.keys() == wanted.keys()
        assert all(one.data_ptr() == wanted[name].data_ptr() for name, one in found.items())
    next(module.children()).register_parameter("added", nn.Parameter(torch.zeros(2)))
    assert item.to_save().keys() == get_model_state_dict(module).keys() > wanted.keys()


def test_a_wrapper_may_give_way_to_a_part_of_its_name() -> None:
    """The names in state_dict() stay the same then, but what torch makes of them does not."""
    with silent_world(1, 0):
        for wrap in (nn.Sequential, torch.compile):
            inner = DistributedDataParallel(nn.Linear(2, 1))
            module: Any = wrap(inner)
            where = "0" if wrap is nn.Sequential else "_orig_mod"
            found = []
            for part in (inner, inner, Holder(inner.module), inner):
                setattr(module, where, part)
                found.append(ModuleItem(module).to_save().keys())
                assert found[-1] == get_model_state_dict(module).keys()
            assert found[0] == found[1] == found[3] != found[2]


def test_a_state_without_content_can_be_loaded_into() -> None:
    state = {"it": None}
    target = LoadTarget(state)
    target.form(Inventory({}, {"it": None}))
    assert target.wants().values == {"it"}


def test_several_modules_by_name() -> None:
    gen, dis = nn.Linear(2, 1), nn.Linear(3, 1)
    state: dict[str, Any] = {"model": gen, "critic": dis}
    state |= {"optimizer": stepped(gen), "optimizer.critic": stepped(dis)}
    tensors = to_save(state).tensors
    assert tensors["optimizer/state.weight.exp_avg"].shape == (1, 2)
    assert tensors["optimizer.critic/state.weight.exp_avg"].shape == (1, 3)


def test_several_modules_by_their_parameters() -> None:
    gen, dis = nn.Linear(2, 1), nn.Linear(3, 1)
    state: dict[str, Any] = {"g": gen, "d": dis, "opt_g": stepped(gen), "opt_d": stepped(dis)}
    tensors = to_save(state).tensors
    assert tensors["opt_g/state.weight.exp_avg"].shape == (1, 2)
    assert tensors["opt_d/state.weight.exp_avg"].shape == (1, 3)


def test_a_module_without_state_has_nothing_to_save() -> None:
    state: dict[str, Any] = {"model": nn.Linear(2, 1), "loss": nn.CrossEntropyLoss()}
    leaves = to_save(state)
    assert [*leaves.tensors, *leaves.values] == ["model/weight", "model/bias"]
    ModuleItem(state["loss"]).load({})


def test_an_optimizer_needs_its_module() -> None:
    a, b = nn.Linear(2, 1), nn.Linear(2, 1)
    with pytest.raises(ValueError, match="also add the module"):
        to_save({"optimizer": adam(a)})
    with pytest.raises(ValueError, match="has parameters of none of the modules"):
        to_save({"a": a, "b": b, "optimizer": adam(nn.Linear(2, 1))})
    with pytest.raises(
        ValueError, match="'optimizer' has parameters that its module does not have"
    ):
        to_save({"a": a, "optimizer": adam(b)})


def test_an_optimizer_that_has_not_stepped_has_no_state() -> None:
    model = nn.Linear(2, 1)
    optimizer = adam(model)
    leaves = to_save({"model": model, "optimizer": optimizer})
    assert not optimizer.state
    assert leaves.tensors.keys() == {"model/weight", "model/bias"}
    assert "optimizer/param_groups.weight.lr" in leaves.values


def test_how_a_step_is_computed_is_not_loaded() -> None:
    """It is another on another device or layout; what the step is, is loaded."""
    saved, live = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizers = [
        torch.optim.AdamW(module.parameters(), lr=lr, fused=fused)
        for module, lr, fused in ((saved, 0.5, None), (live, 0.1, True))
    ]
    for module, optimizer in zip((saved, live), optimizers, strict=True):
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    leaves = to_save({"model": saved, "optimizer": optimizers[0]})
    specs = {name: (tuple(t.shape), dtype_name(t.dtype)) for name, t in leaves.tensors.items()}
    target = LoadTarget({"model": live, "optimizer": optimizers[1]})
    inventory = Inventory(specs, leaves.values)
    target.form(inventory)
    assert difference([target.wants()], inventory) is None
    target.finish(inventory)
    (group,) = optimizers[1].param_groups
    assert (group["lr"], group["fused"], group["foreach"]) == (0.5, True, None)
    optimizers[1].step()


def test_a_module_without_state_adds_nothing_to_any_save() -> None:
    state = {"loss": nn.MSELoss()}
    for _ in range(2):
        leaves = to_save(state)
        assert not leaves.tensors
        assert not leaves.values
