"""What one rank has read reaches the others, packed into messages of bounded size."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from checkpointing.layout.dtensor_placement import structure
from checkpointing.layout.global_plan import GlobalPlan
from checkpointing.layout.tensor_layout import Structure
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore import read_broadcast as module
from checkpointing.restore.read_broadcast import broadcast_reads, tree
from tests.unit.checkpointing.thread_ranks import ThreadRanks, on_thread_ranks


class CountingRanks(RankGroup):
    """Counts the bytes of messages that a rank receives."""

    def __init__(self, ranks: ThreadRanks) -> None:
        self.rank, self._ranks = ranks.rank, ranks
        self.received: list[int] = []

    def send_content(self, body: memoryview, rank: int) -> None:
        self._ranks.send_content(body, rank)

    def receive_content(self, into: memoryview, rank: int) -> None:
        self._ranks.receive_content(into, rank)
        self.received.append(len(into))


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
    plan = GlobalPlan(alike)
    largest = max(t.nbytes for t in whole.values())

    def one(ranks: ThreadRanks) -> tuple[int, dict[str, Tensor], list[int]]:
        own, held = read_by(plan, ranks.rank, whole)
        counting = CountingRanks(ranks)
        broadcast_reads(counting, plan.read_groups(ranks.rank), held)
        return own, held, counting.received

    with mock.patch.object(module, "MESSAGE", message):
        ends = on_thread_ranks(world_size, one)
    expected = {name: bytes_of(tensor) for name, tensor in whole.items()}
    total, parts = sum(t.nbytes for t in whole.values()), len(whole) + world_size
    for own, held, heard in ends:
        assert {name: bytes_of(tensor) for name, tensor in held.items()} == expected
        missing = total - own
        assert missing <= sum(heard) < missing + 16 * parts, "every byte once, and gaps"
        assert max(heard) <= max(message, largest)
    assert sum(own for own, _, _ in ends) == total


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
