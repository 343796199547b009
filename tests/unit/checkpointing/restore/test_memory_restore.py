"""Which of the snapshots in memory counts: pure functions; and that they are copied exactly."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.errors import ServiceError
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore import memory_restore
from checkpointing.restore.memory_restore import (
    CompleteSnapshot,
    await_durable,
    newest_complete,
    newest_part,
    own,
    prepare_load,
)
from checkpointing.save.save_plan import Planner
from checkpointing.service.client.held_snapshots import HeldSnapshot
from checkpointing.service.snapshots import Generation
from checkpointing.staging.arena import Arena
from checkpointing.staging.stager import Stager
from checkpointing.state.tree import Leaves

OLD, NEW = Generation("aaaaaaaa", 2), Generation("bbbbbbbb", 3)


def found(generation: Generation, rank: int, step: int) -> HeldSnapshot:
    return HeldSnapshot(generation, rank, step, 0, "digest", "waiting")


def test_the_newest_whole_one_has_all_ranks_of_one_generation() -> None:
    parts = [found(OLD, 0, 5), found(OLD, 1, 5), found(NEW, 0, 7), found(NEW, 1, 7)]
    assert newest_complete(parts) == CompleteSnapshot(5, OLD)
    assert newest_complete([*parts, found(NEW, 2, 7)]) == CompleteSnapshot(7, NEW)
    assert newest_complete(parts[:1]) is None
    assert newest_complete([found(OLD, 0, 5), found(NEW, 1, 5)]) is None


def test_a_part_counts_only_if_the_missing_ranks_may_be_elsewhere() -> None:
    parts = [found(NEW, rank, 6) for rank in range(3)]
    assert newest_part([*parts, found(NEW, 0, 7)]) == CompleteSnapshot(6, NEW), (
        "rank 1 and 2 are here"
    )
    assert newest_part([found(NEW, 0, 7), found(NEW, 1, 6)]) == CompleteSnapshot(7, NEW), (
        "rank 2 is not"
    )
    assert newest_part([]) is None


@given(st.sets(st.tuples(st.sampled_from([OLD, NEW]), st.integers(0, 2), st.integers(0, 4))))
def test_a_whole_one_is_never_older_than_another(chosen: set[tuple[Generation, int, int]]) -> None:
    parts = [found(g, r, step) for g, r, step in chosen if r < g.world_size]
    whole, part = newest_complete(parts), newest_part(parts)
    complete = {
        (g, step)
        for g, _, step in chosen
        if {(g, rank, step) for rank in range(g.world_size)} <= chosen
    }
    assert (whole is not None) == bool(complete)
    if whole is not None:
        assert (whole.generation, whole.step) in complete
        assert whole.step == max(step for _, step in complete)
        assert part is not None
        assert part.step >= whole.step


def test_ones_own_part_is_of_that_rank_generation_and_step() -> None:
    parts = [found(OLD, 0, 5), found(OLD, 1, 5), found(OLD, 1, 6)]
    assert own(parts, CompleteSnapshot(5, OLD), 1) is parts[1]
    assert own(parts, CompleteSnapshot(6, OLD), 0) is None
    assert own(parts, CompleteSnapshot(5, NEW), 1) is None


@pytest.mark.parametrize("slot", [0, 1])
def test_what_was_staged_is_loaded_bit_for_bit(slot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_restore, "PIECE", 100_000)
    tensors = {
        "large": torch.randn(300, 400),
        "large flags": torch.arange(200_000).to(torch.uint8).view(torch.bool),
        "columns": torch.randn(300, 400).t(),
        "odd": torch.randn(7, 3).t(),
        "bits": torch.tensor([0x7FC12345, -1], dtype=torch.int32).view(torch.float32),
        "flags": torch.tensor([2, 0, 255], dtype=torch.uint8).view(torch.bool),
        "scalar": torch.tensor(3, dtype=torch.int8),
        "none": torch.empty(0, 3),
    }
    leaves = Leaves()
    leaves.tensors.update(tensors)
    planned = Planner(RankGroup()).plan(leaves, [])
    stager = Stager(2)
    pieces = planned.pieces(tensors)
    staged = stager.stage(pieces, slot)
    others = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    copy = prepare_load(stager.arena, staged.start, planned, others)
    assert not any(torch.count_nonzero(other) for other in others.values())
    copy()
    for name, tensor in tensors.items():
        got = others[name].contiguous().view(-1).view(torch.uint8)
        assert torch.equal(got, tensor.contiguous().view(-1).view(torch.uint8)), name
    stager.close()


def test_nothing_is_loaded_from_an_arena_that_is_too_small() -> None:
    tensors = {"first": torch.ones(3), "second": torch.ones(300, 400)}
    leaves = Leaves()
    leaves.tensors.update(tensors)
    planned = Planner(RankGroup()).plan(leaves, [])
    with Arena.create(8192) as arena, pytest.raises(ValueError, match="are outside the arena"):
        prepare_load(arena, 0, planned, tensors)
    assert tensors["first"].tolist() == [1] * 3


class Service:
    """One that answers so, call after call; the last answer for ever."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)

    def snapshots(self) -> SimpleNamespace:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            raise ServiceError("it has ended")
        return SimpleNamespace(found=[replace(found(OLD, 0, 5), state=answer)])


@pytest.mark.parametrize(
    ("answers", "is_durable"),
    [
        (("waiting", None, None, "writing", "durable"), True),
        ((None, "durable"), True),
        (("waiting", None), False),
        (("waiting", "lost"), False),
    ],
)
def test_a_service_that_ends_meanwhile_may_still_make_it_durable(
    answers: tuple[str | None, ...], is_durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_restore, "POLL_S", 0.0)
    monkeypatch.setattr(memory_restore, "UNSEEN_S", 30.0 if is_durable else 0.0)
    service: Any = Service(*answers)
    whole = CompleteSnapshot(5, OLD)
    assert await_durable(RankGroup(), service, whole, 30.0, lambda: False) is is_durable
