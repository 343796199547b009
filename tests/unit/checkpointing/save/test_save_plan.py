"""What a rank stages, in which order and where; and when it asks the others."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from checkpointing.errors import OtherRankError, SaveError
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.save.save_plan import Planner, SavePlan
from checkpointing.state.item_adapters import optimizers, to_save


class Alike(RankGroup):
    """Ranks whose states are all like this one's; counts how often they talk."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.control = self.structures = None
        self.talks = 0

    def all_gather(self, thing: Any, group: object) -> list[Any]:
        self.talks += 1
        return [thing] * self.world_size

    def all_gather_alike(self, thing: Any, digest: object, group: object) -> list[Any]:
        return self.all_gather(thing, group)


def make() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(300, 200), nn.BatchNorm1d(200), nn.Linear(200, 10))
    state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "n": 1}
    step(state)
    return state


def step(state: dict[str, Any]) -> None:
    state["model"](torch.randn(3, 300)).sum().backward()
    state["optimizer"].step()


def plan(planner: Planner, state: dict[str, Any]) -> SavePlan:
    return planner.plan(to_save(state), optimizers(state))


def test_buffers_come_first_and_what_the_optimizer_changes_last() -> None:
    state = make()
    planned = plan(Planner(Alike(0, 1)), state)
    names = [name for name, _ in planned.parts]
    early = names[: len(names) - planned.later]
    assert {name.rpartition(".")[2] for name in early} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    assert set(names) == set(to_save(state).tensors)
    assert planned.saved_values == set(to_save(state).values)


class Flat:
    """An optimizer's state in another form, as torchtitan has it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.stepped_by = (optimizer,)

    def state_dict(self) -> dict[str, Any]:
        return self.stepped_by[0].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stepped_by[0].load_state_dict(state)


def test_an_item_may_say_which_optimizers_change_it() -> None:
    state = make()
    flat = {**state, "optimizer": Flat(state["optimizer"])}
    assert optimizers(flat) == optimizers(state)
    planned = plan(Planner(Alike(0, 1)), flat)
    assert planned.later == plan(Planner(Alike(0, 1)), state).later > 0


def test_a_frozen_parameter_is_not_left_to_the_optimizer() -> None:
    state = make()
    state["optimizer"] = torch.optim.SGD(state["model"][2].parameters())
    planned = plan(Planner(Alike(0, 1)), state)
    late = {name for name, _ in planned.parts[-planned.later :]}
    assert late == {"model/2.weight", "model/2.bias"}


def test_places_do_not_overlap_and_lie_in_the_slot() -> None:
    planned = plan(Planner(Alike(0, 1)), make())
    spans = sorted((p.start, p.start + p.length) for p in planned.layout.places if p.length)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert spans[-1][1] <= planned.layout.end <= planned.slot_bytes
    assert planned.slot_bytes % 4096 == 0


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_stage_everything_once_together(world_size: int) -> None:
    state = make()
    leaves = to_save(state)
    staged = dict.fromkeys(leaves.tensors, 0)
    for rank in range(world_size):
        for place in plan(Planner(Alike(rank, world_size)), state).layout.places:
            staged[place.name] += place.length
    assert staged == {name: tensor.nbytes for name, tensor in leaves.tensors.items()}


def test_ranks_talk_only_when_the_structure_changes() -> None:
    ranks, state = Alike(0, 2), make()
    planner = Planner(ranks)
    first = plan(planner, state)
    step(state)
    state["n"] = 2
    assert plan(planner, state) is first
    assert ranks.talks == 1
    second = plan(planner, {**state, "more": torch.zeros(3)})
    assert ranks.talks == 2
    assert second.layout.digest != first.layout.digest
    third = plan(planner, state)
    assert third is not first
    assert third.layout == first.layout, "the same structure has the same layout"


@pytest.mark.parametrize("change", ["dtype", "shape", "name", "value", "buffer"])
def test_a_plan_is_kept_until_something_is_another(change: str) -> None:
    planner, state = Planner(Alike(0, 1)), make() | {"it": torch.zeros(4)}
    if change == "buffer":
        del state["optimizer"]
    planned = plan(planner, state)
    state["it"] = torch.ones(4)
    assert plan(planner, state) is planned
    others: dict[str, Any] = {
        "dtype": {"it": torch.zeros(4, dtype=torch.int32)},
        "shape": {"it": torch.zeros(2, 2)},
        "name": {"it": {"below": torch.zeros(4)}},
        "value": {"m": 1},
    }
    if change == "buffer":
        layer = state["model"][0]
        bias = layer.bias.detach()
        del layer.bias
        layer.register_buffer("bias", bias)
    else:
        state |= others[change]
    changed = plan(planner, state)
    assert changed is not planned
    assert changed.structure == Planner(Alike(0, 1)).plan(to_save(state), []).structure
    assert plan(planner, state) is changed


def test_layouts_of_other_worlds_and_orders_have_other_digests() -> None:
    state = make()
    frozen = {**state, "optimizer": torch.optim.AdamW(state["model"].parameters())}
    frozen["optimizer"].load_state_dict(state["optimizer"].state_dict())
    digests = [
        plan(Planner(Alike(rank, size)), state).layout.digest
        for rank, size in [(0, 1), (0, 2), (1, 2)]
    ]
    assert len(set(digests)) == 3
    assert plan(Planner(Alike(0, 1)), frozen).layout.digest == digests[0]
    planner = Planner(Alike(0, 1))
    leaves = to_save(state)
    assert planner.plan(leaves, []).layout.digest != digests[0], "nothing comes last"


def test_a_rank_that_changes_alone_is_told_so() -> None:
    class Alone(Alike):
        def all_gather(self, thing: Any, group: object) -> list[Any]:
            raise OtherRankError("another rank did not answer in time")

    with pytest.raises(SaveError, match="rank 1: its state has other tensors or values"):
        plan(Planner(Alone(1, 2)), make())
