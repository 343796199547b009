"""Sequences of a step divided by their cost in attention: complete, even, and the same for all."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.order.balanced_packs import attention_cost, balanced_order
from tests.effort import times


def test_the_cost_is_the_squares_of_documents_and_padding_and_a_linear_term() -> None:
    assert attention_cost(np.array([3, 2]), 8) == 9 + 4 + 9
    assert attention_cost(np.array([5, 3]), 8, linear=10) == 25 + 9 + 80


def test_long_documents_go_to_different_ranks_and_micro_batches() -> None:
    costs = np.array([100.0, 90, 80, 70, 1, 2, 3, 4])
    order = balanced_order(costs, world=2, micro_batch=2)
    assert sorted(order[:4].tolist() + order[4:].tolist()) == list(range(8))
    pairs = [set(pair) & {0, 1, 2, 3} for pair in order.reshape(-1, 2).tolist()]
    assert [len(pair) for pair in pairs] == [1, 1, 1, 1], "one in each micro-batch"
    first, second = costs[order[:4]].sum(), costs[order[4:]].sum()
    assert abs(first - second) <= 2


@settings(max_examples=times(100), deadline=None)
@given(
    costs=st.lists(st.integers(1, 10**6), min_size=1, max_size=60),
    world=st.integers(1, 9),
    micro_batch=st.one_of(st.none(), st.integers(1, 5)),
)
def test_each_sequence_is_taken_once_and_no_rank_has_much_more_than_its_part(
    costs: list[int], world: int, micro_batch: int | None
) -> None:
    """The bound is that of a list schedule with equal numbers: the mean and one sequence more."""
    given_ = np.array(costs, np.float64)
    order = balanced_order(given_, world, micro_batch)
    assert sorted(order.tolist()) == list(range(len(costs)))
    assert np.array_equal(order, balanced_order(given_, world, micro_batch))
    if len(costs) % world == 0 and micro_batch is None:
        loads = given_[order].reshape(world, -1).sum(axis=1)
        assert loads.max() - loads.min() <= given_.max()
