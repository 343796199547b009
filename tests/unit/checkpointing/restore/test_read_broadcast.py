"""What one rank has read reaches the others, packed into messages of bounded size."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from checkpointing.layout.dtensor_placement import structure
from checkpointing.layout.global_plan import GlobalPlan
from checkpointing.layout.tensor_layout import Structure
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore import read_broadcast as module
from checkpointing.restore.read_broadcast import broadcast_reads, tree


class Wires:
    """Between ranks that are threads of this process."""

    def __init__(self, world_size: int) -> None:
        pairs = itertools.product(range(world_size), range(world_size))
        self._wires: dict[tuple[int, int], Queue[Tensor]] = {pair: Queue() for pair in pairs}
        self.heard: list[list[int]] = [[] for _ in range(world_size)]  # bytes of messages, by rank
        self.mine = threading.local()

    def send(self, tensor: Tensor, dst: int, group: Any) -> None:
        self._wires[self.mine.rank, dst].put(tensor.clone())

    def recv(self, tensor: Tensor, src: int, group: Any) -> None:
        tensor.copy_(self._wires[src, self.mine.rank].get(timeout=60))
        self.heard[self.mine.rank].append(tensor.nbytes)


class Members(RankGroup):
    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.control = rank, world_size, mock.sentinel.group


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "matrix": torch.rand(700, 300, generator=generator),
        "small": torch.arange(5, dtype=torch.int16),
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False, True]),
        "bits": torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32),
        "none": torch.empty(0, 4),
    }


@pytest.mark.parametrize("message", [1 << 30, 300_000, 1])
@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_every_rank_ends_up_with_everything(world_size: int, message: int) -> None:
    whole = tensors()
    alike: list[Structure] = [structure(whole, ())] * world_size
    plan, wires = GlobalPlan(alike), Wires(world_size)
    largest = max(t.nbytes for t in whole.values())

    def one(rank: int) -> tuple[int, dict[str, Tensor]]:
        wires.mine.rank = rank
        own, held = read_by(plan, rank, whole)
        broadcast_reads(Members(rank, world_size), plan.read_groups(rank), held)
        return own, held

    with (
        mock.patch.object(dist, "send", wires.send),
        mock.patch.object(dist, "recv", wires.recv),
        mock.patch.object(module, "MESSAGE", message),
        ThreadPoolExecutor(world_size) as pool,
    ):
        ends = list(pool.map(one, range(world_size)))
    expected = {name: bytes_of(tensor) for name, tensor in whole.items()}
    total, parts = sum(t.nbytes for t in whole.values()), len(whole) + world_size
    for (own, held), heard in zip(ends, wires.heard, strict=True):
        assert {name: bytes_of(tensor) for name, tensor in held.items()} == expected
        missing = total - own
        assert missing <= sum(heard) < missing + 16 * parts, "every byte once, and gaps"
        assert max(heard) <= max(message, largest)
    assert sum(own for own, _ in ends) == total


def read_by(plan: GlobalPlan, rank: int, whole: dict[str, Tensor]) -> tuple[int, dict[str, Tensor]]:
    """What the rank has after its own reads, and their bytes: the rest is not there yet."""
    size = 0
    held = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    for group in plan.read_groups(rank):
        for name, parts in group.reads[group.ranks.index(rank)].items():
            for part in parts:
                held[name][part.local.slices] = whole[name][part.box.slices]
                size += part.box.count * whole[name].element_size()
    return size, held


def bytes_of(tensor: Tensor) -> list[int]:
    flat = tensor.contiguous().view(-1)
    found: list[int] = flat.view(torch.uint8).tolist()
    return found


@given(members=st.sets(st.integers(0, 500), min_size=1, max_size=70), data=st.data())
def test_a_tree_reaches_every_member_once(members: set[int], data: st.DataObject) -> None:
    ranks = sorted(members)
    source = data.draw(st.sampled_from(ranks))
    places = {rank: tree(ranks, source, rank) for rank in ranks}
    assert places[source].parent is None
    told = [child for place in places.values() for child in place.children]
    assert sorted(told) == sorted(members - {source})
    for rank in ranks:
        for child in places[rank].children:
            assert places[child].parent == rank
        steps, at = 0, rank
        while (parent := places[at].parent) is not None:
            at, steps = parent, steps + 1
        assert at == source
        assert steps <= len(ranks).bit_length()
