"""Stand-ins show what a first step makes of an optimizer's state, and nothing happens to it."""

from __future__ import annotations

import copy
import functools
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from checkpointing.format.torch_dtypes import copy_bits
from checkpointing.state.expected_optimizer_state import state_after_step
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.optimizer_state import OptimizerItem
from checkpointing.state.optimizer_step import stepped_once
from checkpointing.state.unfilled_tensors import unfilled_like
from tests.unit.checkpointing.silent_process_group import silent_world
from tests.unit.checkpointing.state.state_transfer import stored


def parameters_of_each_kind() -> list[nn.Parameter]:
    """Of other dimensions, dtypes and strides; one is frozen, and one has no elements."""
    images = torch.rand(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    found = [torch.rand(4, 2), torch.rand(7), torch.rand(()), images, torch.rand(4, 6).T]
    found += [torch.rand(3, 3).bfloat16(), torch.rand(5).double(), torch.rand(0, 4)]
    frozen = nn.Parameter(torch.rand(2, 2), requires_grad=False)
    return [*map(nn.Parameter, found), frozen]


def matrices() -> list[nn.Parameter]:
    return [nn.Parameter(torch.rand(shape)) for shape in ((2, 5), (3, 3))]


def in_two_groups(kind: Any, first: dict[str, Any], other: dict[str, Any]) -> Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": parameters_of_each_kind(), **first},
        {"params": parameters_of_each_kind()[:2], **other},
        {"params": []},
    ]
    made: Optimizer = kind(groups)
    return made


MADE: dict[str, Callable[[], Optimizer]] = {
    "adadelta": lambda: in_two_groups(optim.Adadelta, {}, {"weight_decay": 0.1}),
    "adam": lambda: in_two_groups(optim.Adam, {"amsgrad": True}, {"weight_decay": 0.1}),
    "adamax": lambda: in_two_groups(optim.Adamax, {}, {"maximize": True}),
    "adamw": lambda: in_two_groups(AdamW, {}, {"lr": torch.tensor(0.1)}),
    "asgd": lambda: in_two_groups(optim.ASGD, {}, {"t0": 0}),
    "complex": lambda: AdamW([nn.Parameter(torch.rand(3, 2, dtype=torch.complex64))]),
    "foreach": lambda: in_two_groups(AdamW, {"foreach": True}, {}),
    "fused": lambda: AdamW(parameters_of_each_kind(), fused=True),
    "fused sgd": lambda: SGD(parameters_of_each_kind(), momentum=0.9, fused=True),
    "nadam": lambda: in_two_groups(optim.NAdam, {}, {"decoupled_weight_decay": True}),
    "radam": lambda: in_two_groups(optim.RAdam, {}, {"foreach": True}),
    "rmsprop": lambda: in_two_groups(optim.RMSprop, {"centered": True}, {"momentum": 0.5}),
    "rprop": lambda: in_two_groups(optim.Rprop, {}, {}),
    "sgd": lambda: in_two_groups(SGD, {}, {"momentum": 0.9, "nesterov": True, "dampening": 0}),
}
if hasattr(optim, "Muon"):  # since torch 2.9
    MADE["muon"] = lambda: optim.Muon(matrices(), lr=0.1)


def described(state: Any) -> Any:
    """The state of an optimizer without the content of its tensors."""
    return {
        parameter: {key: form(value) for key, value in its.items()}
        for parameter, its in state.items()
        if its
    }


def form(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    sharding = (value.device_mesh, value.placements) if isinstance(value, DTensor) else None
    sizes = value.shape, value.stride(), value.dtype, value.device
    return type(value), sizes, value.requires_grad, value.is_leaf, sharding


@pytest.mark.parametrize("name", MADE)
def test_stand_ins_show_what_a_whole_step_does(name: str) -> None:
    optimizer = MADE[name]()
    found = state_after_step(optimizer)
    assert found is not None
    with stepped_once(optimizer):
        wanted = described(optimizer.state)
    assert described(found) == wanted
    assert [*described(found)] == [*wanted]
    each = [one for its in found.values() for one in its.values() if isinstance(one, Tensor)]
    assert len({id(one.untyped_storage()) for one in each}) == len(each)  # no two share memory


def test_sharded_parameters_have_state_that_is_sharded_as_they_are() -> None:
    with silent_world(4, 1) as mesh:
        parts = [
            nn.Parameter(DTensor.from_local(torch.rand(2, 3), mesh, [Shard(0)])),
            nn.Parameter(DTensor.from_local(torch.rand(3), mesh, [Replicate()])),
            nn.Parameter(torch.rand(3)),
        ]
        for optimizer in (AdamW(parts), SGD(parts, momentum=0.9)):
            found = state_after_step(optimizer)
            assert found is not None
            with stepped_once(optimizer):
                assert described(found) == described(optimizer.state)
            assert any(isinstance(value, DTensor) for value in found[parts[0]].values())


class KindredAdamW(AdamW):
    """It may do anything."""


class OwnParameter(nn.Parameter):
    """Operations on it may do anything."""


def one_parameter() -> list[nn.Parameter]:
    return [nn.Parameter(torch.rand(2, 2))]


def with_own_method() -> Optimizer:
    optimizer = AdamW(one_parameter())
    vars(optimizer)["_init_group"] = optimizer._init_group  # bound to this one
    return optimizer


def stepped() -> Optimizer:
    optimizer = AdamW(parameters := one_parameter())
    parameters[0].grad = torch.ones(2, 2)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        stepped,
        with_own_method,
        lambda: KindredAdamW(one_parameter()),
        lambda: AdamW([OwnParameter(torch.rand(2, 2))]),
        lambda: AdamW([nn.Parameter(torch.rand(2, 2, device="meta"))]),
        lambda: AdamW(one_parameter(), differentiable=True),
        lambda: optim.Adafactor(one_parameter()),
        lambda: optim.LBFGS(one_parameter()),
        lambda: optim.SparseAdam(one_parameter()),
    ],
)
def test_what_is_not_known_is_left_to_a_whole_step(make: Callable[[], Optimizer]) -> None:
    assert state_after_step(make()) is None


def test_a_state_of_another_form_is_left_to_a_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a later torch, or of one that a program has changed."""
    real = AdamW._init_group
    for extra in (torch.zeros(3, 1), torch.zeros(2), [torch.zeros(3, 3)], object()):

        def init(
            self: AdamW, group: dict[str, Any], *lists: Any, more: Any = extra, real: Any = real
        ) -> Any:
            found = real(self, group, *lists)
            for parameter in group["params"]:
                self.state[parameter]["more"] = more
            return found

        monkeypatch.setattr(AdamW, "_init_group", init)
        assert state_after_step(AdamW(one_parameter())) is None


def test_state_of_no_parameter_is_left_to_a_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = AdamW._init_group

    def init(self: AdamW, *arguments: Any) -> Any:
        vars(self)["state"]["count"] = 1
        return real(self, *arguments)

    monkeypatch.setattr(AdamW, "_init_group", init)
    optimizer = AdamW(one_parameter())
    assert state_after_step(optimizer) is None
    names = dict.fromkeys(optimizer.param_groups[0]["params"], "p")
    assert OptimizerItem("o", optimizer, names).expected()["own_state.count"] == 1


@pytest.mark.parametrize("wraps", [True, False])
def test_a_step_that_a_program_has_replaced_steps_its_own_parameters(
    monkeypatch: pytest.MonkeyPatch, wraps: bool
) -> None:
    optimizer = AdamW(one_parameter())
    scales = dict.fromkeys(optimizer.param_groups[0]["params"], 0.5)
    real: Any = AdamW.step

    def step(self: AdamW, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad *= scales[parameter]
        return real(self, closure)

    monkeypatch.setattr(AdamW, "step", functools.wraps(real)(step) if wraps else step)
    assert state_after_step(optimizer) is None
    found = OptimizerItem("o", optimizer, dict.fromkeys(scales, "p")).expected()
    assert "state.p.exp_avg" in found


class Marked(Tensor):
    """A class whose zeros are plain, as of weights that a library converts when they are used."""

    @staticmethod
    def __new__(cls, held: Tensor) -> Marked:
        make: Any = Tensor._make_wrapper_subclass
        made: Marked = make(cls, held.shape, dtype=held.dtype, requires_grad=held.requires_grad)
        return made

    def __init__(self, held: Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*(one.held if isinstance(one, cls) else one for one in args), **(kwargs or {}))
        return found if func is torch.ops.aten.zeros_like.default else cls(found)


def test_state_has_the_class_that_zeros_have() -> None:
    marked = nn.Parameter(Marked(torch.rand(2, 3)))
    assert type(torch.empty_like(marked)) is Marked
    made = unfilled_like(marked, torch.float64)
    assert type(made) is Tensor
    assert (made.shape, made.dtype, made.requires_grad) == ((2, 3), torch.float64, False)
    with silent_world(4, 1) as mesh:
        sharded: Any = nn.Parameter(DTensor.from_local(Marked(torch.rand(2, 3)), mesh, [Shard(0)]))
        assert type(sharded) is DTensor
        held: Any = unfilled_like(sharded, torch.float32)
        assert type(held.to_local()) is Tensor
        assert state_after_step(AdamW([sharded])) is None


def test_an_error_of_the_step_is_that_of_the_whole_step() -> None:
    parameter = nn.Parameter(torch.rand(2))
    optimizer = AdamW([parameter], capturable=True)  # which a CPU cannot
    says = "capturable=True, params and state_steps must be on supported devices"
    with pytest.raises(AssertionError, match=says), stepped_once(optimizer):
        pass
    with pytest.raises(AssertionError, match=says):
        OptimizerItem("o", optimizer, {parameter: "p"}).expected()
    assert not optimizer.state
    assert parameter.grad is None


def test_nothing_of_the_program_changes_and_none_of_its_hooks_is_called() -> None:
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    parameters = [nn.Parameter(special.clone()), *parameters_of_each_kind()]
    optimizer = AdamW(parameters, lr=0.1, weight_decay=0.1)
    schedule = optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    called: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    handle = register_optimizer_step_pre_hook(lambda *_: called.append("of all"))
    parameters[1].grad = gradient = torch.ones(4, 2)
    own, groups = dict(vars(optimizer)), [dict(group) for group in optimizer.param_groups]
    bits = [copy.deepcopy(p.detach()) for p in parameters]
    versions, random = [p._version for p in parameters], torch.random.get_rng_state()
    counts = dict(schedule.state_dict())
    try:
        assert state_after_step(optimizer) is not None
    finally:
        handle.remove()
    assert called == []
    assert dict(vars(optimizer)) == own
    assert not optimizer.state
    assert [dict(group) for group in optimizer.param_groups] == groups
    assert [p.grad for p in parameters] == [None, gradient, *[None] * (len(parameters) - 2)]
    assert [p._version for p in parameters] == versions
    for parameter, before in zip(parameters, bits, strict=True):
        flat, its = (one.detach().reshape(-1).view(torch.uint8) for one in (parameter, before))
        assert torch.equal(flat, its)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert dict(schedule.state_dict()) == counts


def program(parameters: Iterable[nn.Parameter]) -> dict[str, Any]:
    model = nn.ParameterList(parameters)
    return {"model": model, "optimizer": AdamW(model.parameters())}


def trained() -> dict[str, Any]:
    state = program([nn.Parameter(torch.rand(4, 2)), nn.Parameter(torch.rand(()))])
    for parameter in state["model"].parameters():
        parameter.grad = torch.rand_like(parameter)
    state["optimizer"].step()
    return state


def test_what_is_expected_is_what_is_loaded_into_and_is_no_longer_unused_then() -> None:
    saved = trained()
    inventory, tensors = stored(saved)
    live = program([nn.Parameter(torch.zeros(4, 2)), nn.Parameter(torch.zeros(()))])
    target = LoadTarget(live)
    target.expect()
    moment = target.leaves.tensors["optimizer/state.0.exp_avg"]
    for _ in range(2):  # as for another checkpoint, if the first is damaged
        target.form(inventory)
        assert target.leaves.tensors["optimizer/state.0.exp_avg"] is moment
        assert target.unused() == {name for name in tensors if name.startswith("optimizer/state.")}
        assert not live["optimizer"].state
    for name, tensor in target.leaves.tensors.items():
        copy_bits(tensor, tensors[name])
    target.finish(inventory)
    assert target.unused() == set()
    first = next(live["model"].parameters())
    assert live["optimizer"].state[first]["exp_avg"] is moment
    after = LoadTarget(live)
    after.expect()
    after.form(inventory)
    assert after.leaves.tensors["optimizer/state.0.exp_avg"] is moment
    assert after.unused() == set()


def test_a_tensor_that_does_not_fit_is_made_anew() -> None:
    """The checkpoint has it in another dtype, or has none of a step."""
    saved = trained()
    for its in saved["optimizer"].state.values():
        its["exp_avg"] = its["exp_avg"].double()
    inventory, _ = stored(saved)
    live = program([nn.Parameter(torch.zeros(4, 2)), nn.Parameter(torch.zeros(()))])
    target = LoadTarget(live)
    target.expect()
    target.form(inventory)
    moment = target.leaves.tensors["optimizer/state.0.exp_avg"]
    assert (moment.dtype, moment.shape) == (torch.float64, (4, 2))
    assert "optimizer/state.0.exp_avg" in target.unused()
    nothing, _ = stored(program(saved["model"].parameters()))
    target.form(nothing)
    assert target.unused() == set()
    assert not any(name.startswith("optimizer/state.") for name in target.leaves.tensors)


def test_what_is_expected_of_large_parameters_writes_to_no_memory_of_their_size() -> None:
    """A fault is a page of 4 KiB, or a huge one, that was written to for the first time."""
    live = program([nn.Parameter(torch.empty(4096, 4096))])
    inventory, _ = stored(trained())
    LoadTarget(program([nn.Parameter(torch.zeros(1, 1))])).expect()  # what is imported once
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    target = LoadTarget(live)
    target.expect()
    specs = {f"optimizer/state.0.{key}": ((4096, 4096), "float32") for key in ("exp_avg",)}
    target.form(type(inventory).made(specs, dict(inventory.values)))
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert target.unused() == set(specs)
    assert faults * 4096 < live["model"][0].nbytes / 8


def test_a_large_tensor_asks_for_huge_pages() -> None:
    if not Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        pytest.skip("this kernel has no huge pages")
    made = unfilled_like(torch.empty(4, 1 << 20), torch.float32)
    assert (made.shape, made.dtype, made.requires_grad) == ((4, 1 << 20), torch.float32, False)
    assert "hg" in flags_at(made.data_ptr() + made.nbytes // 2)


def flags_at(address: int) -> list[str]:
    """What the kernel notes of the mapping of an address."""
    is_it = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            low, high = (int(one, 16) for one in first.split("-"))
            is_it = low <= address < high
        elif is_it and first == "VmFlags:":
            return rest
    raise AssertionError("no mapping has this address")
