"""What comes back of an optimizer is what was saved, whatever program it was and is."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, Optimizer

from checkpointing.errors import StructureError
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.state.item_adapters import to_save
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.optimizer_state import OptimizerItem
from checkpointing.state.parameter_names import parameter_names
from checkpointing.state.structure_comparison import Inventory, difference
from checkpointing.state.tree import Leaves, flatten
from tests.effort import times
from tests.unit.checkpointing.plain import Point, Progress, same
from tests.unit.checkpointing.silent_process_group import silent_world
from tests.unit.checkpointing.state.state_transfer import carry, stored


def layers(*sizes: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(4, size) for size in sizes or (4, 4)))


def adam(module: nn.Module, **options: Any) -> AdamW:
    return AdamW(module.parameters(), lr=0.1, **options)


def step(module: nn.Module, optimizer: Optimizer, times: int = 1, only: int | None = None) -> None:
    """`only`: the layer that takes part."""
    generator = torch.Generator().manual_seed(7)
    for _ in range(times):
        optimizer.zero_grad()
        x = torch.randn(3, 4, generator=generator)
        used = list(module)[only] if only is not None else module  # type: ignore[call-overload]
        used(x).square().sum().backward()
        optimizer.step()


def everything(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """All bits of both, and what the options are."""
    names = parameter_names(module)
    found: dict[str, Any] = {f"p.{n}": p.detach().clone() for n, p in module.named_parameters()}
    every: dict[Any, Any] = optimizer.state
    for parameter, state in every.items():
        if isinstance(parameter, str):
            found[f"t.{parameter}"] = copy.deepcopy(state)
            continue
        for key, value in state.items():
            kept = value.clone() if isinstance(value, Tensor) else copy.deepcopy(value)
            found[f"s.{names[parameter]}.{key}"] = kept
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            options = {key: value for key, value in group.items() if key != "params"}
            found[f"g.{names[parameter]}"] = copy.deepcopy(options)
    return found


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, Tensor):
            assert torch.equal(value, other[name]), name
            assert value.dtype is other[name].dtype, name
        else:
            assert same(value, other[name], ordered=False), name


def as_plain(module: nn.Module, optimizer: Optimizer, made: tuple[nn.Module, Optimizer]) -> Any:
    """What torch makes of the state dicts in another program: the oracle."""
    made[0].load_state_dict(copy.deepcopy(module.state_dict()))
    made[1].load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return everything(*made)


# --- what works exactly -------------------------------------------------------------------------


def test_a_parameter_that_never_stepped_has_no_state_before_and_after() -> None:
    module = layers()
    optimizer = adam(module)
    step(module, optimizer, 3, only=0)
    live = layers()
    carry(
        {"model": module, "optimizer": optimizer}, {"model": live, "optimizer": (o := adam(live))}
    )
    assert_same(everything(live, o), everything(module, optimizer))
    assert set(o.state) == {live[0].weight, live[0].bias}
    for one, its in ((module, optimizer), (live, o)):
        step(one, its, 2)
    assert_same(everything(live, o), everything(module, optimizer))


@pytest.mark.parametrize("frozen_before", [True, False], ids=["again", "thawed"])
def test_layers_that_are_frozen_later_keep_their_state(frozen_before: bool) -> None:
    module, live = layers(), layers()
    optimizer, o = adam(module), adam(live)
    step(module, optimizer, 2)
    module[0].requires_grad_(False)
    optimizer.zero_grad()
    step(module, optimizer, 2)
    live[0].requires_grad_(not frozen_before)
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert_same(everything(live, o), everything(module, optimizer))


def test_gradients_do_not_matter_and_stay() -> None:
    module, live = layers(), layers()
    optimizer, o = adam(module), adam(live)
    step(module, optimizer)
    live(torch.ones(1, 4)).sum().backward()
    gradients = [p.grad.clone() for p in live.parameters() if p.grad is not None]
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert_same(everything(live, o), everything(module, optimizer))
    assert all(
        torch.equal(p.grad, g)  # type: ignore[arg-type]
        for p, g in zip(live.parameters(), gradients, strict=True)
    )


def test_an_optimizer_that_had_not_stepped_is_so_again() -> None:
    module, live = layers(), layers()
    o = adam(live)
    step(live, o, 2)
    carry({"model": module, "optimizer": adam(module)}, {"model": live, "optimizer": o})
    assert not o.state


def test_state_comes_in_the_order_of_parameters_on_all_ranks() -> None:
    """Not in one that differs by process, such as a set's: who goes over it may ask all ranks."""
    module, live = layers(*[2] * 20), layers(*[2] * 20)
    optimizer, o = adam(module), adam(live)
    for layer in module:
        layer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert [*map(id, o.state)] == [*map(id, live.parameters())]


def test_an_empty_group_may_have_a_tensor_as_an_option() -> None:
    def made(module: nn.Module, lr: float) -> AdamW:
        groups: list[dict[str, Any]] = [{"params": list(module.parameters())}]
        return AdamW([*groups, {"params": [], "lr": torch.tensor(lr)}], lr=torch.tensor(0.1))

    module, live = layers(), layers()
    optimizer, o = made(module, 0.7), made(live, 0.3)
    step(module, optimizer)
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert_same(everything(live, o), everything(module, optimizer))
    assert torch.equal(o.param_groups[1]["lr"], torch.tensor(0.7))


def test_what_a_new_scheduler_has_once_may_be_two_things_in_a_checkpoint() -> None:
    """A SequentialLR's rates are those of its first scheduler until it steps."""

    def made() -> dict[str, Any]:
        module = layers()
        optimizer = adam(module)
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
        one = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2)
        parts = [one, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]
        scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [2])
        return {"model": module, "optimizer": optimizer, "scheduler": scheduler}

    saved, live = made(), made()
    for _ in range(3):
        saved["optimizer"].step()
        saved["scheduler"].step()
    carry(saved, live)
    assert str(live["scheduler"].state_dict()) == str(saved["scheduler"].state_dict())


def two_groups(module: nn.Sequential, first: int = 0, **second: Any) -> AdamW:
    """The layer `first` by itself with its own learning rate, and the other one."""
    options = {"lr": 0.5, "weight_decay": 0.0, **second}
    own: dict[str, Any] = {"params": list(module[first].parameters()), **options}
    rest: dict[str, Any] = {"params": list(module[1 - first].parameters())}
    return AdamW([own, rest] if not first else [rest, own], lr=0.1)


@pytest.mark.parametrize("kind", [float, torch.tensor])
def test_an_empty_group_has_its_options(kind: Callable[[float], Any]) -> None:
    def made(module: nn.Module, lr: Any) -> AdamW:
        groups: list[dict[str, Any]] = [{"params": list(module.parameters())}]
        return AdamW([*groups, {"params": [], "lr": lr}], lr=0.1)

    module, live = layers(), layers()
    optimizer, o = made(module, kind(0.7)), made(live, kind(0.3))
    step(module, optimizer)
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert o.param_groups[1]["lr"] == kind(0.7)
    assert_same(everything(live, o), everything(module, optimizer))


def test_groups_in_another_order_take_their_own_options() -> None:
    module, live = layers(), layers()
    optimizer = two_groups(module)
    step(module, optimizer)
    groups: list[dict[str, Any]] = [{"params": list(live[1].parameters())}]
    o = AdamW([*groups, {"params": list(live[0].parameters()), "lr": 0.3}], lr=0.2)
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert_same(everything(live, o), everything(module, optimizer))


def test_names_in_groups_are_the_programs_and_are_not_saved() -> None:
    """Those that torch keeps of named parameters: once for each parameter they would be many."""

    def program(*groups: str) -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        named = [
            {"params": [(n, p) for n, p in model.named_parameters() if n.startswith(start)]}
            for start in groups
        ]
        state: dict[str, Any] = {"model": model, "optimizer": torch.optim.AdamW(named)}
        model(torch.ones(1, 3)).sum().backward()
        state["optimizer"].step()
        return state

    saved, again, merged = program("0", "1"), program("0", "1"), program("")
    assert not any("param_names" in name for name in to_save(saved).values)
    for into in (again, merged):
        carry(saved, into)
    wanted = saved["optimizer"].state_dict()
    assert again["optimizer"].state_dict()["param_groups"] == wanted["param_groups"]
    assert merged["optimizer"].param_groups[0]["param_names"] == [
        name for name, _ in merged["model"].named_parameters()
    ]


def test_groups_may_be_split_where_all_have_the_saved_options_already() -> None:
    module, live = layers(), layers()
    optimizer = adam(module)
    step(module, optimizer)
    o = two_groups(live, lr=0.1, weight_decay=0.01)
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert_same(everything(live, o), everything(module, optimizer))


def test_an_option_that_one_side_does_not_know_is_kept() -> None:
    module, live = layers(), layers()
    optimizer, o = adam(module), adam(live)
    optimizer.param_groups[0]["initial_lr"] = 0.4
    o.param_groups[0]["mine"] = "kept"
    step(module, optimizer)
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    (group,) = o.param_groups
    assert (group["initial_lr"], group["mine"]) == (0.4, "kept")


def test_wrapped_modules_have_the_same_names() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plain = list(parameter_names(module).values())
    assert plain == ["0.weight", "0.bias", "1.weight", "1.bias"]
    with silent_world(1, 0):
        wrapped = DistributedDataParallel(torch.compile(module))
        assert list(parameter_names(wrapped).values()) == plain
        optimizer = adam(module)
        step(module, optimizer)
        live = layers()
        o = adam(live)
        saved = {"model": wrapped, "optimizer": optimizer}
        carry(saved, {"model": live, "optimizer": o})
    assert_same(everything(live, o), everything(module, optimizer))


def groups_of_each_kind(module: nn.Sequential) -> AdamW:
    """One has no parameters, and one has a tensor and a dict with a tensor as options."""
    options = {"lr": torch.tensor(0.1), "mine": {"a": torch.zeros(2), "b": 1}}
    groups: list[dict[str, Any]] = [{"params": [], "lr": 0.3}, {"params": module[0].parameters()}]
    optimizer = AdamW(groups, lr=0.1)
    optimizer.add_param_group({"params": module[1].parameters(), **options})
    return optimizer


def with_own_state(module: nn.Module) -> SGD:
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    states: dict[Any, Any] = optimizer.state
    states |= {"a": {"b": torch.zeros(2), "c": 1}, "d": 2}
    states[next(module.parameters())] = {"history": [torch.zeros(3), torch.ones(1)], "n": (1, 2)}
    return optimizer


@pytest.mark.parametrize("make", [adam, groups_of_each_kind, with_own_state])
def test_what_is_saved_quickly_is_what_is_loaded_into(make: Callable[[Any], Optimizer]) -> None:
    """Also a second time, with other content under the same names, and under other names."""
    module = layers()
    optimizer = make(module)
    plain = parameter_names(module)
    slashed = {p: f"a/{name}" for p, name in plain.items()}
    for names in (slashed, slashed, plain):
        step(module, optimizer, only=0)
        optimizer.param_groups[-1]["weight_decay"] = random.random()
        assert_saved_as_loaded(OptimizerItem("o", optimizer, names))


def test_names_that_are_kept_are_those_of_the_present_groups() -> None:
    module = layers(4, 4, 4)
    names = parameter_names(module)
    optimizer = SGD([{"params": module[n].parameters()} for n in (0, 1)], lr=0.1, momentum=0.9)
    first, second = optimizer.param_groups

    def exchange() -> None:
        first["params"], second["params"] = second["params"], first["params"]

    changes: list[Callable[[], object]] = [
        lambda: None,
        exchange,
        lambda: first["params"].reverse(),
        lambda: first.update(mine=1),
        lambda: first.update({"lr": first.pop("lr")}),  # in another order
        lambda: first.update(lr=torch.tensor(0.2)),
        lambda: optimizer.add_param_group({"params": module[2].parameters(), "lr": 0.3}),
        lambda: optimizer.param_groups.reverse(),
        lambda: optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict())),
        lambda: optimizer.param_groups[0]["params"].clear(),
    ]
    for change in changes:
        change()
        assert_saved_as_loaded(OptimizerItem("o", optimizer, names))


def assert_saved_as_loaded(item: OptimizerItem) -> None:
    wanted, found = Leaves(), item.leaves("it")
    flatten(item.to_save(), "it", wanted)
    starts = ("it/state.", "it/own_state.")
    assert found.stepped == {leaf for leaf in wanted.tensors if leaf.startswith(starts)}
    assert found.unlike == {leaf for leaf in wanted.values if leaf.startswith("it/place_of.")}
    assert found.values == wanted.values
    assert found.containers == wanted.containers
    assert list(found.tensors) == list(wanted.tensors)
    assert all(found.tensors[name] is one for name, one in wanted.tensors.items())


def test_options_of_one_name_are_refused() -> None:
    module = layers()
    optimizer = adam(module)
    optimizer.param_groups[0]["b.c"] = 1
    optimizer.param_groups[0]["c"] = 2
    parameters: Iterable[Tensor] = module.parameters()
    names = dict(zip(parameters, ("a", "a.b", "c", "d"), strict=True))
    with pytest.raises(TypeError, match="two entries of the state are both named"):
        OptimizerItem("o", optimizer, names).leaves("it")


def test_tied_parameters_have_one_name() -> None:
    module = layers()
    module[1].weight = module[0].weight
    assert list(parameter_names(module).values()) == ["0.weight", "0.bias", "1.bias"]


def test_an_optimizer_may_have_parameters_of_several_modules() -> None:
    def made() -> dict[str, Any]:
        encoder, head = nn.Linear(4, 4), nn.Linear(4, 2)
        both = AdamW([*encoder.parameters(), *head.parameters()], lr=0.1)
        return {"encoder": encoder, "head": head, "optimizer": both}

    saved, live = made(), made()
    saved["head"](saved["encoder"](torch.ones(1, 4))).sum().backward()
    saved["optimizer"].step()
    carry(saved, live)
    for name in ("encoder", "head"):
        for parameter, its in zip(saved[name].parameters(), live[name].parameters(), strict=True):
            state, other = saved["optimizer"].state[parameter], live["optimizer"].state[its]
            assert all(torch.equal(state[key], other[key]) for key in state)
    assert any(
        name.startswith("optimizer/state.encoder.weight.") for name in to_save(saved).tensors
    )


def test_a_module_may_have_several_optimizers() -> None:
    def made() -> dict[str, Any]:
        module = layers()
        first = SGD(module[0].parameters(), lr=0.1, momentum=0.9)
        return {"model": module, "a": first, "b": adam(module[1])}

    saved, live = made(), made()
    for name in ("a", "b"):
        saved["model"](torch.ones(1, 4)).sum().backward()
        saved[name].step()
    carry(saved, live)
    for name in ("a", "b"):
        names = parameter_names(saved["model"])
        here = {n: p for p, n in parameter_names(live["model"]).items()}
        for parameter, state in saved[name].state.items():
            other = live[name].state[here[names[parameter]]]
            assert all(torch.equal(state[key], other[key]) for key in state)


def test_lists_of_tensors_come_back_as_lists() -> None:
    def closure(module: nn.Module, o: Optimizer) -> Callable[[], Any]:
        def loss() -> Any:
            o.zero_grad()
            found = module(torch.ones(2, 4)).square().sum()
            found.backward()
            return found

        return loss

    def made() -> tuple[nn.Module, torch.optim.LBFGS]:
        module = layers()
        return module, torch.optim.LBFGS(module.parameters(), max_iter=3)

    (module, optimizer), (live, o) = made(), made()
    optimizer.step(closure(module, optimizer))  # type: ignore[no-untyped-call]
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    for _ in range(2):
        optimizer.step(closure(module, optimizer))  # type: ignore[no-untyped-call]
        o.step(closure(live, o))  # type: ignore[no-untyped-call]
    assert all(
        torch.equal(a, b) for a, b in zip(module.parameters(), live.parameters(), strict=True)
    )


class Shampoo(SGD):
    """It has state under texts, and trees of tensors and values everywhere."""

    def step(self, closure: Any = None) -> Any:
        state: dict[Any, Any] = self.state
        seen = state.setdefault("statistics", {"seen": 0, "sums": {}})
        seen["seen"] += 1
        state["a/b.c~"] = torch.full((2,), float(seen["seen"]))
        state["plain"] = (seen["seen"], None)
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                total = parameter.grad.detach().sum()
                seen["sums"][number] = [total, {"last": total * 2, "step": seen["seen"]}]
                factors = {0: total + 1, "L": [total, (total * 3, 1.5)], "none": {}}
                state[parameter]["factors"] = factors
        return super().step(closure)


def texts(optimizer: Optimizer) -> dict[Any, Any]:
    state: dict[Any, Any] = optimizer.state
    return {key: value for key, value in state.items() if isinstance(key, str)}


def test_state_under_texts_comes_back_as_it_was() -> None:
    module, live = layers(), layers()
    optimizer, o = (Shampoo(m.parameters(), lr=0.1, momentum=0.9) for m in (module, live))
    for _ in range(2):
        step(module, optimizer, 2)
        carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
        assert set(texts(o)) == {"statistics", "a/b.c~", "plain"}
        assert same(texts(o), texts(optimizer), ordered=False)
        for parameter, its in zip(module.parameters(), live.parameters(), strict=True):
            assert same(dict(o.state[its]), dict(optimizer.state[parameter]), ordered=False)
    other = Shampoo(live.parameters(), lr=0.1, momentum=0.9)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert same(texts(o), texts(other), ordered=False)


def test_state_under_texts_that_was_not_saved_is_none_of_it() -> None:
    module, live = layers(), layers()
    optimizer, o = (Shampoo(m.parameters(), lr=0.1) for m in (module, live))
    step(live, o)
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert not o.state


def test_what_is_expected_of_an_optimizer_leaves_it_as_it_was() -> None:
    module = layers()
    optimizer = Shampoo(module.parameters(), lr=0.1)
    target = LoadTarget({"model": module, "optimizer": optimizer})
    target.expect()
    assert {"optimizer/own_state.a~1b.c~0", "optimizer/own_state.statistics/sums/0/0"} <= set(
        target.leaves.tensors
    )
    assert not optimizer.state


def test_a_state_that_is_there_and_empty_stays_so() -> None:
    module = layers()
    optimizer = adam(module)
    state: dict[Any, Any] = optimizer.state
    mine: dict[str, Any] = {}
    state[module[0].weight] = mine
    LoadTarget({"model": module, "optimizer": optimizer}).expect()
    assert [*state] == [module[0].weight]
    assert state[module[0].weight] is mine
    assert mine == {}


def test_what_a_checkpoint_has_not_stays_what_it_is_where_that_is_allowed() -> None:
    module, live = layers(4), layers(4, 4)
    optimizer, o = adam(module), adam(live)
    step(module, optimizer)
    step(live, o, 2)
    before = everything(live, o)
    carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o}, strict=False)
    found = everything(live, o)
    assert_same(
        {n: v for n, v in found.items() if ".1." in n},
        {n: v for n, v in before.items() if ".1." in n},
    )
    assert float(found["s.0.weight.step"]) == 1


# --- what is refused, and what is said ----------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda m: two_groups(m), "its groups have other parameters than in the checkpoint"),
        (lambda m: SGD(m.parameters(), lr=0.1), "was saved as AdamW, but is SGD here"),
        (lambda m: Adam(m.parameters(), lr=0.1), "was saved as AdamW, but is Adam here"),
        (lambda m: adam(m[0]), "not in the state"),
    ],
    ids=["split", "another class", "a kindred one", "fewer parameters"],
)
def test_another_program_is_refused_and_nothing_is_touched(
    made: Callable[[Any], Optimizer], says: str
) -> None:
    module, live = layers(), layers()
    optimizer, o = adam(module), made(live)
    step(module, optimizer)
    step(live, o)
    before, random_before = everything(live, o), torch.random.get_rng_state()
    with pytest.raises(StructureError, match=says):
        carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert_same(everything(live, o), before)
    assert torch.equal(torch.random.get_rng_state(), random_before)


def test_groups_that_were_merged_are_refused() -> None:
    module, live = layers(), layers()
    optimizer = two_groups(module)
    step(module, optimizer)
    with pytest.raises(StructureError, match=r"its groups have other parameters .*0\.weight"):
        carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": adam(live)})


@pytest.mark.parametrize(("decay", "is_refused"), [(0.0, False), (0.1, True)])
def test_groups_of_two_stages_that_differ_are_not_merged(decay: float, is_refused: bool) -> None:
    """The stages of a pipeline have an optimizer each, whose groups have the same numbers."""
    live = layers()
    values, specs = dict[str, Any](), dict[str, Any]()
    for name, its in (("0", 0.0), ("1", decay)):
        stage = nn.ModuleDict({name: nn.Linear(4, 4)})
        found, _ = stored({"model": stage, "optimizer": adam(stage, weight_decay=its)})
        values |= found.values
        specs |= found.tensors
    target = LoadTarget({"model": live, "optimizer": adam(live)})
    target.form(both := Inventory.made(specs, values))
    text = difference([target.wants()], both) or ""
    assert ("its groups have other parameters" in text) is is_refused


@pytest.mark.parametrize(
    ("options", "is_refused"),
    [
        (({"weight_decay": 0}, {"weight_decay": 0.0}), False),
        (({"betas": (0, 0.9)}, {"betas": (0.0, 0.9)}), False),
        (({"betas": (0.1, 0.9)}, {"betas": (0.2, 0.9)}), True),
        (({"lr": torch.tensor(0.1)}, {"lr": torch.tensor(0.2)}), True),
        (({"lr": torch.tensor(0.1)}, {"lr": 0.1}), True),
    ],
)
def test_merged_groups_are_refused_if_their_options_may_differ(
    options: tuple[dict[str, Any], dict[str, Any]], is_refused: bool
) -> None:
    """What a tensor has is not known before it is read, so two are taken to differ."""

    def grouped(module: nn.Module) -> AdamW:
        first, *rest = module.parameters()
        one, other = copy.deepcopy(options)
        return AdamW([{"params": [first], **one}, {"params": rest, **other}], weight_decay=0.0)

    module, live = layers(), layers()
    optimizer, again, merged = grouped(module), grouped(live), AdamW(live.parameters())
    step(module, optimizer)
    saved = {"model": module, "optimizer": optimizer}
    carry(saved, {"model": live, "optimizer": again})
    assert_same(everything(live, again), everything(module, optimizer))
    with pytest.raises(StructureError, match="other parameters") if is_refused else nullcontext():
        carry(saved, {"model": live, "optimizer": merged})


def test_state_under_another_key_than_a_text_is_refused_at_the_save() -> None:
    module = layers()
    for key in (7, ("a", 1), torch.zeros(1)):
        optimizer = Shampoo(module.parameters(), lr=0.1)
        optimizer.state[key] = {"seen": torch.ones(1)}  # type: ignore[index]
        says = r"optimizer 'optimizer': .* is neither one of its parameters nor text"
        with pytest.raises(TypeError, match=says):
            to_save({"model": module, "optimizer": optimizer})


def test_tensors_in_an_object_in_an_optimizer_are_refused_at_the_save() -> None:
    module = layers()
    for value in (Point(torch.ones(1)), [Progress(1, torch.ones(1))]):
        for key in ("x", module[0].weight):
            optimizer = Shampoo(module.parameters(), lr=0.1)
            optimizer.state[key] = {"x": value}  # type: ignore[index]
            with pytest.raises(TypeError, match=r"tensors in an object of class P.*; keep them in"):
                to_save({"model": module, "optimizer": optimizer})


def test_a_weight_decay_that_was_changed_is_the_checkpoints_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module, live = layers(), layers()
    optimizer, o = adam(module, weight_decay=0.1), adam(live, weight_decay=0.2)
    step(module, optimizer)
    with caplog.at_level(logging.WARNING, "checkpointing"):
        carry({"model": module, "optimizer": optimizer}, {"model": live, "optimizer": o})
    assert o.param_groups[0]["weight_decay"] == 0.1
    assert "weight_decay of group 0 is 0.1 from the checkpoint, not 0.2" in caplog.text
    assert caplog.text.count("from the checkpoint") == 1


def without(leaves: Any, *kinds: str) -> Inventory:
    """As an earlier version has saved it."""
    specs = {n: (tuple(t.shape), dtype_name(t.dtype)) for n, t in leaves.tensors.items()}
    starts = tuple(f"optimizer/{kind}" for kind in kinds)
    values = {n: v for n, v in leaves.values.items() if not n.startswith(starts)}
    return Inventory(specs, values)


def test_what_was_saved_before_groups_and_classes_were_is_still_read() -> None:
    module, live = layers(), layers()
    optimizer = two_groups(module)
    step(module, optimizer)
    old = without(
        to_save({"model": module, "optimizer": optimizer}), "group_of.", "class", "empty_group."
    )
    for made, says in (
        (two_groups, None),
        (adam, "its groups have other parameters"),
        (lambda m: SGD(m.parameters(), lr=0.1), "was saved as another kind, with amsgrad, betas"),
    ):
        target = LoadTarget({"model": live, "optimizer": made(live)})
        target.form(old)
        text = difference([target.wants()], old)
        assert (text is None) if says is None else (says in str(text))


# --- any program --------------------------------------------------------------------------------

KINDS: dict[str, Callable[..., Optimizer]] = {
    "sgd": lambda groups: SGD(groups, lr=0.1),
    "momentum": lambda groups: SGD(groups, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda groups: Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: AdamW(groups, lr=0.01),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "adadelta": lambda groups: torch.optim.Adadelta(groups),
    "adamax": lambda groups: torch.optim.Adamax(groups),
    "nadam": lambda groups: torch.optim.NAdam(groups),
    "radam": lambda groups: torch.optim.RAdam(groups),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.5, centered=True),
    "rprop": lambda groups: torch.optim.Rprop(groups),
    "asgd": lambda groups: torch.optim.ASGD(groups),
    "shampoo": lambda groups: Shampoo(groups, lr=0.1, momentum=0.9),
    "adafactor": lambda groups: torch.optim.Adafactor(groups),
}


class Program:
    """A module and an optimizer by chance, the same for the same seed but for what is in them."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.module = nn.ModuleList(
            nn.Linear(4, 4, bias=draw.random() < 0.7) for _ in range(draw.randint(1, 4))
        )
        if draw.random() < 0.2:
            self.module[-1].to(torch.bfloat16)
        elif len(self.module) > 1 and draw.random() < 0.2:
            self.module[1].weight = self.module[0].weight
        self.kind = draw.choice(sorted(KINDS))
        parameters = list(self.module.parameters())
        draw.shuffle(parameters)
        cut = draw.randint(0, len(parameters))
        groups = [
            {"params": parameters[:cut], "lr": draw.choice([0.1, 0.02])},
            {"params": parameters[cut:], "weight_decay": draw.choice([0.0, 0.1])},
        ]
        self.optimizer = KINDS[self.kind](groups)
        self.steps = [[draw.random() < 0.7 for _ in self.module] for _ in range(draw.randint(0, 3))]
        self.frozen = draw.randrange(len(self.module)) if draw.random() < 0.3 else None

    def train(self, steps: list[list[bool]]) -> None:
        """`steps`: which layers take part in each."""
        generator = torch.Generator().manual_seed(len(steps))
        for used in steps:
            self.optimizer.zero_grad()
            for layer, is_used in zip(self.module, used, strict=True):
                x = torch.randn(2, 4, generator=generator)
                loss = layer(x.to(next(layer.parameters()).dtype)).float().square().sum()
                if is_used and loss.requires_grad:
                    loss.backward()
            self.optimizer.step()

    def freeze(self) -> None:
        if self.frozen is not None:
            self.module[self.frozen].requires_grad_(False)
            self.optimizer.zero_grad()

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.module, "optimizer": self.optimizer}


@pytest.mark.parametrize("part", range(4))
def test_any_program_goes_on_as_with_torchs_own_state_dicts(part: int) -> None:
    for seed in range(part, times(500), 4):
        first, second, oracle = Program(seed), Program(seed), Program(seed)
        first.train(first.steps)
        first.freeze()
        if seed % 3 == 0:
            second.train(second.steps[:1])
        if seed % 5 == 0:
            second.freeze()
        try:
            wanted = everything(first.module, first.optimizer)
            carry(first.state, second.state)
            assert_same(everything(second.module, second.optimizer), wanted)
            if all(p.dtype is torch.float32 for p in first.module.parameters()):
                # else torch's casts what are no moments, such as NAdam's products
                made = oracle.module, oracle.optimizer
                assert_same(as_plain(first.module, first.optimizer, made), wanted)
            for program in (first, second):
                program.module.requires_grad_(True)
                program.train([[True] * len(program.module)] * 2)
            assert_same(
                everything(second.module, second.optimizer),
                everything(first.module, first.optimizer),
            )
        except Exception as error:
            raise AssertionError(f"seed {seed}, {first.kind}: {error}") from error


@pytest.mark.parametrize(
    ("saver", "loader"),
    [
        (adam, lambda m: adam(m, weight_decay=0.5)),
        (lambda m: two_groups(m), lambda m: two_groups(m)),
        (adam, lambda m: two_groups(m)),
        (lambda m: two_groups(m), adam),
        (adam, lambda m: Adam(m.parameters(), lr=0.1)),
        (adam, lambda m: adam(m, amsgrad=True)),
        (lambda m: SGD(m.parameters(), lr=torch.tensor(0.1)), lambda m: SGD(m.parameters(), 0.1)),
        (lambda m: AdamW([{"params": [p]} for p in m.parameters()]), adam),
    ],
    ids=["options", "groups", "split", "merged", "class", "state", "tensor", "merged-alike"],
)
@pytest.mark.parametrize("is_stepped", [True, False])
def test_a_state_of_which_this_was_expected_is_loaded_as_any_other(
    saver: Callable[[Any], Optimizer], loader: Callable[[Any], Optimizer], is_stepped: bool
) -> None:
    """What was expected is loaded into if it has the leaves of the checkpoint."""
    module = layers()
    optimizer = saver(module)
    step(module, optimizer, 2)
    inventory, tensors = stored({"model": module, "optimizer": optimizer})
    found = []
    for is_expected in (True, False):
        live = layers()
        o = loader(live)
        if is_stepped:
            step(live, o)
        target = LoadTarget({"model": live, "optimizer": o})
        if is_expected:
            target.expect()
        target.form(inventory)
        text = difference([target.wants()], inventory)
        if not text:
            for name, tensor in target.leaves.tensors.items():
                tensor.detach().copy_(tensors[name])
            target.finish(inventory)
            assert target.is_live
            assert target.leaves.tensors.keys() == tensors.keys()
        found.append((text, None if text else everything(live, o)))
    (text, loaded), (other_text, other_loaded) = found
    assert text == other_text
    if loaded is not None and other_loaded is not None:
        assert_same(loaded, other_loaded)
