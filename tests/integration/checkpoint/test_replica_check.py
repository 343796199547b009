"""Replicas that differ are found at the next save that compares them, by tensor and rank; no tensor
is put together of several; and what is gone on from is a checkpoint whose replicas agree. Real
processes over gloo."""

from __future__ import annotations

import logging
import random
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from checkpointing import Checkpointer, Last, SaveError, Store, list_checkpoints
from checkpointing.format.replica_differences import ReplicaDifference
from checkpointing.state.item_adapters import to_save
from checkpointing.store.catalog import committed
from tests.integration.rank_worlds import run_world

State = dict[str, Any]


class Told(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Model(nn.Module):
    """Tensors of many sizes, one of them of more than a block of a sample."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(300, 100)
        self.norm = nn.BatchNorm1d(100)
        self.small = nn.Linear(100, 3)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.small(self.norm(self.large(x)).relu())
        return out * self.scale


def state_of() -> State:
    torch.manual_seed(7)
    model = DistributedDataParallel(Model())
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "loss": 0.5}


def train(state: State) -> None:
    """A step on samples that each rank has of its own."""
    state["model"](torch.randn(8, 300)).square().mean().backward()
    state["optimizer"].step()
    state["optimizer"].zero_grad()


def flip_bit(tensor: Tensor, seed: int) -> None:
    """As a particle would: nothing counts it."""
    held = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    bits = held.detach().view(-1).view(torch.uint8).numpy()
    bits[seed * 7919 % bits.size] ^= 1 << seed % 8


def marks(root: Path) -> dict[int, list[ReplicaDifference]]:
    """What each step's checkpoint is marked with."""
    store = Store.open(root)
    found = {}
    for one in committed(store, "r")[0]:
        mark = one.document.header.marked
        found[one.stored.save.step] = list(mark.differences) if mark else []
    store.close()
    return found


def by_rank(root: Path, state: State, name: str) -> Tensor:
    """What every rank has of a tensor of that name."""
    mine = to_save(state).tensors[name].detach().clone()
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    return torch.stack(every)


def flip_one_after_the_other(rank: int, tmp: Path, overlap: bool) -> list[tuple[int, str]]:
    """Flips: (rank, tensor) by step; every other step is clean."""
    events: list[dict[str, Any]] = []
    state = state_of()
    torch.manual_seed(rank)
    train(state)
    names = sorted(n for n in to_save(state).tensors if "norm.running" not in n)
    names = [n for n in names if not n.endswith("num_batches_tracked")]
    chosen = [(number % 3, name) for number, name in enumerate(names)]
    ckpt = Checkpointer(
        tmp / "store",
        run="r",
        overlap=overlap,
        on_event=lambda kind, **fields: events.append({"kind": kind, **fields}),
    )
    ckpt.restore(state)
    for number, (odd, name) in enumerate(chosen):
        train(state)
        ckpt.save(2 * number, state)
        ckpt.wait()
        tensor = to_save(state).tensors[name]
        was = tensor.detach().clone()
        if rank == odd:
            flip_bit(tensor, number)
        ckpt.save(2 * number + 1, state)
        ckpt.wait()
        tensor.data.copy_(was)
    ckpt.close()
    if rank == 0:
        told = [one for one in events if one["kind"] == "replicas_differ"]
        assert [one["step"] for one in told] == [2 * n + 1 for n in range(len(chosen))]
        assert [one["odd_ranks"] for one in told] == [[odd] for odd, _ in chosen]
    return chosen


@pytest.mark.parametrize("overlap", [True, False])
def test_a_bit_that_is_flipped_on_one_rank_of_three_is_found(tmp_path: Path, overlap: bool) -> None:
    """In each parameter, moment and buffer in turn; the clean saves between are not marked, though
    the moments of a BatchNorm differ."""
    chosen = run_world(3, partial(flip_one_after_the_other, overlap=overlap), tmp_path)[0]
    found = marks(tmp_path / "store")
    assert len(chosen) > 15
    assert len(found) == 2 * len(chosen)
    for number, (odd, name) in enumerate(chosen):
        assert found[2 * number] == []
        (difference,) = found[2 * number + 1]
        assert (difference.name, difference.odd) == (name, (odd,))
        assert difference.kind == ("buffer" if name == "model/scale" else "tensor")


def go_own_ways(rank: int, tmp: Path) -> dict[str, list[Tensor]]:
    """All tensors differ on all ranks."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(2048, 1024), nn.Linear(1024, 3))
    ckpt = Checkpointer(tmp / "store", run="r")
    state: State = {"model": model}
    ckpt.save(1, state)
    ckpt.wait()
    ckpt.close()
    return {name: list(by_rank(tmp, state, name)) for name in to_save(state).tensors}


def test_no_tensor_is_put_together_of_several_replicas(tmp_path: Path) -> None:
    held = run_world(3, go_own_ways, tmp_path)[0]
    (differences,) = marks(tmp_path / "store").values()
    stored = {one.name: one.stored for one in differences}
    assert stored.keys() == held.keys()
    model = nn.Sequential(nn.Linear(2048, 1024), nn.Linear(1024, 3))
    ckpt = Checkpointer(tmp_path / "store", run="r")
    assert ckpt.restore({"model": model}) == 1
    ckpt.close()
    for name, tensor in to_save({"model": model}).tensors.items():
        assert torch.equal(tensor, held[name][stored[name] or 0])
        assert sum(torch.equal(tensor, one) for one in held[name]) == 1


def divide(rank: int, tmp: Path) -> str:
    """A tensor that is large enough to be divided: at first one part of it differs, then all."""
    with mock.patch("checkpointing.save.replica_check.DIVIDED", 1 << 20):
        torch.manual_seed(0)
        model = nn.Linear(1024, 1024, bias=False)
        ckpt = Checkpointer(tmp / "store", run="r")
        state: State = {"model": model}
        ckpt.restore(state)
        ckpt.save(1, state)
        ckpt.wait()
        if rank == 1:
            model.weight.data[-1, -1] += 1
        ckpt.save(2, state)
        ckpt.wait()
        if rank == 1:
            model.weight.data[0, 0] += 1
        ckpt.save(3, state)
        with pytest.raises(SaveError) as refused:
            ckpt.wait()
        ckpt.close()
        return str(refused.value)


def test_a_tensor_in_parts_is_of_one_replica_or_not_committed(tmp_path: Path) -> None:
    told = run_world(2, divide, tmp_path)
    assert "it would mix replicas that differ: tensor model/weight: rank 0 and rank 1" in told[0]
    found = marks(tmp_path / "store")
    assert found.keys() == {1, 2}
    assert found[1] == []
    assert found[2] == [ReplicaDifference("model/weight", "tensor", ((0,), (1,)), 1)]


def part_from_step_3_on(rank: int, tmp: Path) -> None:
    state = state_of()
    ckpt = Checkpointer(tmp / "store", run="r", keep=[Last(2)])
    ckpt.restore(state)
    for step in range(1, 7):
        train(state)
        if step == 3 and rank == 1:
            flip_bit(state["model"].module.large.weight, 5)
        ckpt.save(step, state)
        ckpt.wait()
    ckpt.close()


def go_on(rank: int, tmp: Path, options: dict[str, Any]) -> tuple[int | None, list[Any]]:
    events: list[Any] = []
    state = state_of()
    ckpt = Checkpointer(
        tmp / "store",
        run="r",
        on_event=lambda kind, **fields: events.append((kind, fields.get("step"))),
        **options,
    )
    step = ckpt.restore(state)
    ckpt.close()
    return step, [one for one in events if one[0] == "checkpoint_skipped"]


def test_what_is_gone_on_from_is_the_newest_whose_replicas_agree(tmp_path: Path) -> None:
    """Which retention keeps, however many came after it; also of what is left in memory."""
    run_world(2, part_from_step_3_on, tmp_path)
    found = marks(tmp_path / "store")
    assert {step: bool(mark) for step, mark in found.items()} == {2: False, 5: True, 6: True}
    infos = list_checkpoints(tmp_path / "store")
    assert [one.is_suspect for one in infos] == [False, True, True]
    told = run_world(2, partial(go_on, options={"check_replicas": False}), tmp_path)
    assert told[0] == (6, [])
    told = run_world(2, partial(go_on, options={}), tmp_path)
    assert [step for step, _ in told] == [2, 2]
    assert sorted(told[0][1]) == [("checkpoint_skipped", 5), ("checkpoint_skipped", 6)]


def differ_all_the_time(rank: int, tmp: Path, options: dict[str, Any]) -> tuple[int | None, bool]:
    """From the first save on: the step that is restored, and whether its mark is told."""
    told = Told()
    logging.getLogger("checkpointing").addHandler(told)
    state = state_of()
    if rank == 1:
        flip_bit(state["model"].module.large.weight, 5)
    ckpt = Checkpointer(tmp / "store", run="r", **options)
    for step in (1, 2, 3, 4):
        train(state)
        ckpt.save(step, state)
        ckpt.wait()
    restored = ckpt.restore(state_of())
    ckpt.close()
    return restored, any("whose replicas differ" in text for text in told.texts)


@pytest.mark.parametrize(
    ("options", "marked"),
    [
        ({}, [True] * 4),
        ({"check_replicas": False}, [False] * 4),
        ({"check_replicas": 2}, [True, False, True, False]),
        ({"may_differ": ["*large.weight"]}, [False] * 4),
    ],
    ids=str,
)
def test_how_often_and_what_is_compared(
    tmp_path: Path, options: dict[str, Any], marked: list[bool]
) -> None:
    """Where all are marked the newest is gone on from all the same."""
    found = run_world(2, partial(differ_all_the_time, options=options), tmp_path)
    assert [bool(mark) for _, mark in sorted(marks(tmp_path / "store").items())] == marked
    best = max((s for s, m in zip((1, 2, 3, 4), marked, strict=True) if not m), default=4)
    is_told = all(marked)
    assert found == [(best, is_told), (best, False)], "by rank 0"


def shard(rank: int, tmp: Path) -> None:
    """A hybrid sharding: two replicas of two shards, and a norm that all four have."""
    mesh = init_device_mesh("cpu", (2, 2))
    weight = distribute_tensor(torch.arange(4000.0).view(1000, 4), mesh, [Replicate(), Shard(0)])
    norm = distribute_tensor(torch.ones(1000), mesh, [Replicate(), Replicate()])
    module = nn.ParameterDict({"weight": nn.Parameter(weight), "norm": nn.Parameter(norm)})
    state: State = {"model": module, "optimizer": torch.optim.SGD(module.parameters(), lr=0.1)}
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt.restore(state)
    ckpt.save(1, state)
    ckpt.wait()
    if rank == 3:
        flip_bit(module["weight"], 1)
    ckpt.save(2, state)
    ckpt.wait()
    if rank == 2:
        flip_bit(module["norm"], 1)
    ckpt.save(3, state)
    ckpt.wait()
    ckpt.close()


def test_replicas_of_shards_and_of_what_is_replicated(tmp_path: Path) -> None:
    run_world(4, shard, tmp_path)
    found = marks(tmp_path / "store")
    assert found[1] == []
    assert [(d.name, d.ranks) for d in found[2]] == [("model/weight", ((1,), (3,)))]
    assert {(d.name, d.ranks, d.odd) for d in found[3]} == {
        ("model/norm", ((0, 1, 3), (2,)), (2,)),
        ("model/weight", ((1,), (3,)), ()),
    }


def diverge_in_values(rank: int, tmp: Path) -> None:
    state: State = {"model": nn.Linear(2, 2), "best": 1.0, "plain": torch.zeros(3)}
    ckpt = Checkpointer(tmp / "store", run="r")
    for step in (1, 2, 3):
        if step == 2:
            state["best"] = float(rank)
        if step == 3:
            state["best"] = 5.0
            state["plain"] += rank
        ckpt.save(step, state)
        ckpt.wait()
    ckpt.close()


def test_values_that_come_to_differ_later(tmp_path: Path) -> None:
    run_world(2, diverge_in_values, tmp_path)
    found = marks(tmp_path / "store")
    assert {step: [(d.name, d.kind) for d in mark] for step, mark in found.items()} == {
        1: [],
        2: [("best", "value")],
        3: [("plain", "value")],
    }
    assert not any(one.is_suspect for one in list_checkpoints(tmp_path / "store"))


def save_often(rank: int, tmp: Path) -> None:
    """Clean ones, with steps of optimizers that wait for their copies."""
    state = state_of()
    torch.manual_seed(100 + rank)
    ckpt = Checkpointer(tmp / "store", run="r")
    ckpt.restore(state)
    drawn = random.Random(3)
    for step in range(60):
        ckpt.save(step, state)
        for _ in range(drawn.randrange(3)):
            train(state)
        ckpt.wait()
    ckpt.close()


def test_clean_saves_are_not_marked(tmp_path: Path) -> None:
    run_world(2, save_often, tmp_path)
    found = marks(tmp_path / "store")
    assert len(found) == 60
    assert not any(found.values())


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for check in ("always", 0, -1, True, None, 2.5):
        with pytest.raises(
            ValueError, match="check_replicas must be 'every', a number of saves or"
        ):
            Checkpointer(tmp_path, run="r", check_replicas=check)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="may_differ must be a list of patterns"):
        Checkpointer(tmp_path, run="r", may_differ="model/*")
