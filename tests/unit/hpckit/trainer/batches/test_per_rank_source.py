"""Loaders of other libraries continue where they were, or are refused with the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from checkpointing import PerRank
from hpckit.trainer.errors import TrainingError
from tests.effort import times
from tests.unit.hpckit.trainer.batches.sources import (
    Counter,
    Epochs,
    Interrupted,
    NumberedEpochs,
    Numbers,
    epoch_lengths,
    source_of,
)

LENGTH = st.integers(1, 6)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=4)


class Noisy(Dataset[Tensor]):
    """Eleven samples, each with noise that is drawn as it is read."""

    def __getitem__(self, index: int) -> Tensor:
        if index >= 11:
            raise IndexError
        return torch.stack([torch.tensor(float(index)), torch.rand(())])

    def __len__(self) -> int:
        return 11


def stateful() -> Any:
    return StatefulDataLoader(Noisy(), batch_size=2, shuffle=True)


def stateful_by_processes() -> Any:
    return StatefulDataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=2)


def stateful_and_sampled() -> Any:
    return StatefulDataLoader(Noisy(), batch_size=2, sampler=DistributedSampler(Noisy(), 2, 1))


def plain() -> Any:
    return DataLoader(Noisy(), batch_size=2, shuffle=True)


def plain_with_generator() -> Any:
    generator = torch.Generator().manual_seed(torch.initial_seed())
    return DataLoader(Noisy(), batch_size=2, shuffle=True, generator=generator)


def plain_and_sampled() -> Any:
    return DataLoader(Noisy(), batch_size=2, sampler=DistributedSampler(Noisy(), 2, 1))


def as_lists(batches: list[Any]) -> list[Any]:
    return [one.tolist() if isinstance(one, Tensor) else one for one in batches]


def indices_of(batches: list[Any]) -> list[Any]:
    return [[sample[0] for sample in batch] for batch in batches]


@settings(deadline=None, max_examples=times(20))
@given(kind=st.sampled_from([Epochs, NumberedEpochs]), length=LENGTH, cuts=CUTS)
def test_what_was_seen_is_skipped_over_any_epochs(
    kind: type[Epochs], length: int, cuts: list[int]
) -> None:
    whole = Interrupted(lambda: kind(length)).run(sum(cuts))
    loop = Interrupted(lambda: kind(length))
    assert [batch for cut in cuts for batch in loop.run(cut)] == whole
    assert epoch_lengths(whole, length)
    begins = [sum(cuts[:number]) for number in range(len(cuts))]
    reread = [0 if one is None else one.batches for one in loop.skipped]
    within = [(step - 1) % length + 1 if step else 0 for step in begins]
    assert reread == (within if kind is NumberedEpochs else begins)


WITHIN, BETWEEN = [2, 5, 7], [6, 6, 2]
"""Steps of each process: it ends within an epoch of six, or between two."""


@pytest.mark.parametrize(
    ("make", "cuts"),
    [
        *((stateful, cuts) for cuts in (WITHIN, BETWEEN)),
        *((stateful_and_sampled, cuts) for cuts in (WITHIN, BETWEEN)),
        *((plain, cuts) for cuts in (WITHIN, BETWEEN)),
        (plain_with_generator, WITHIN),
        (plain_and_sampled, WITHIN),
        (stateful_by_processes, WITHIN),
    ],
)
def test_loaders_of_torch_continue_over_epochs(make: Callable[[], Any], cuts: list[int]) -> None:
    whole, loop = as_lists(Interrupted(make).run(14)), Interrupted(make)
    taken = [batch for cut in cuts for batch in as_lists(loop.run(cut))]
    if make is stateful_by_processes:  # torchdata does not save the generators of its processes
        taken, whole = indices_of(taken), indices_of(whole)
    assert taken == whole
    assert (loop.skipped[1] is None) == ("plain" not in make.__name__)


def test_a_position_is_that_of_what_was_delivered_and_no_tensor_has_to_be_there_before() -> None:
    loop = Interrupted(Counter)
    assert [*loop.run(3), *loop.run(2), *loop.run(1)] == [1, 2, 3, 4, 5, 6]
    assert loop.skipped == [None] * 3


def test_an_iterator_of_grain_continues_and_then_ends() -> None:
    loop = Interrupted(lambda: Numbers(5))
    assert [*loop.run(2), *loop.run(3)] == [1, 2, 3, 4, 5]
    with pytest.raises(TrainingError, match=r"Numbers.* after step 5.*train.steps=5"):
        loop.run(1)


def test_a_generator_is_read_again_and_that_is_said() -> None:
    loop = Interrupted(lambda: iter([10, 11, 12, 13]))
    assert [*loop.run(2), *loop.run(2)] == [10, 11, 12, 13]
    said = str(loop.skipped[1])
    assert "2 batches of list_iterator were read again and discarded in" in said
    assert "make it again from the first batch" in said
    with pytest.raises(TrainingError, match="no more batches after step 4"):
        loop.run(1)


def test_epochs_of_another_length_are_refused() -> None:
    lengths = iter([4, 3])
    loop = Interrupted(lambda: Epochs(next(lengths)))
    loop.run(6)
    with pytest.raises(TrainingError, match=r"epoch 2 began after step 4, and now .* step 3"):
        loop.run(1)


def test_every_step_gets_the_first_batch_to_overfit() -> None:
    for make in (lambda: Epochs(4), Counter):
        loop = Interrupted(make, repeats_first=True)
        (first, *others) = loop.run(3)
        assert [*others, *loop.run(1)] == [first] * 3
        assert loop.skipped == [None, None]


class _Unsaved(Counter):
    def __init__(self, state: object) -> None:
        super().__init__()
        self._state = state

    def state_dict(self) -> Any:
        return self._state


@pytest.mark.parametrize(
    ("state", "says"), [(None, "its state is None"), ({"a": object()}, r"cannot save .*object")]
)
def test_a_state_that_cannot_be_saved_is_refused_in_the_first_step(
    state: object, says: str
) -> None:
    with pytest.raises(TrainingError, match=rf"_Unsaved.*{says}"):
        source_of(_Unsaved(state)).take(0)


def other_world(loader: object, states: list[Any], **more: Any) -> Any:
    """What a source does with the positions of two ranks, alone."""
    tracked = source_of(loader, **more).tracked
    assert isinstance(tracked, PerRank)
    assert callable(tracked.other_world)
    return tracked.other_world(states, 0, 1)


def positions(make: Callable[[], Any], steps: int) -> list[Any]:
    """Those of two ranks after so many steps."""
    sources = [source_of(make(), part=(rank, 2)) for rank in (0, 1)]
    for source in sources:
        for step in range(steps):
            source.take(step)
    return [source.tracked.held.state_dict() for source in sources]


@pytest.mark.parametrize("make", [Counter, lambda: Epochs(4)], ids=["stateful", "stateless"])
def test_on_another_world_the_rule_is_to_refuse(make: Callable[[], Any]) -> None:
    with pytest.raises(TrainingError, match=r'positions of 2 ranks, and here are 1.*rule.*"error"'):
        other_world(make(), positions(make, 6))


def continued(make: Callable[[], Any], states: list[Any], rule: Any, step: int) -> Iterator[Any]:
    source = source_of(make(), other_world=rule)
    held = source.tracked.held
    held.load_state_dict(source.tracked.other_world(states, 0, 1))
    source.resume(step, lambda: None)
    assert held.state_dict()["part"] == (0, 1)
    yield source.take(step)
    saved = held.state_dict()
    again = source_of(make())
    again.tracked.held.load_state_dict(saved)
    again.resume(step + 1, lambda: None)
    yield again.take(step + 1)


def test_on_another_world_each_rank_may_begin_the_next_epoch() -> None:
    states = positions(lambda: NumberedEpochs(4), 6)
    batches = [*continued(lambda: NumberedEpochs(4), states, "next_epoch", 6)]
    assert [one[0] for one in batches] == [2, 2]
    assert batches[0][1] != batches[1][1]
    states = positions(lambda: Epochs(4), 6)
    batches = [*continued(lambda: Epochs(4), states, "next_epoch", 6)]
    assert batches[0][1] != batches[1][1]
    assert [*continued(Counter, positions(Counter, 6), "next_epoch", 6)] == [1, 2]


def test_on_another_world_each_rank_may_have_the_position_of_rank_0() -> None:
    assert [*continued(Counter, positions(Counter, 6), "first", 6)] == [7, 8]
    whole = Interrupted(lambda: Epochs(4)).run(8)
    states = positions(lambda: Epochs(4), 6)
    assert [*continued(lambda: Epochs(4), states, "first", 6)] == whole[6:]


def test_on_another_world_a_function_may_choose_the_state() -> None:
    def choose(states: list[Any], rank: int, world: int) -> Any:
        assert (len(states), rank, world) == (2, 0, 1)
        return {**states[1], "cells": states[0]["cells"] + states[1]["cells"]}

    assert [*continued(Counter, positions(Counter, 6), choose, 6)] == [13, 14]


def test_another_part_of_the_batch_is_refused() -> None:
    (saved, _) = positions(Counter, 2)
    held = source_of(Counter(), part=(0, 1)).tracked.held
    with pytest.raises(TrainingError, match="part 0 of 2 of each batch, and this rank takes part"):
        held.load_state_dict(saved)
