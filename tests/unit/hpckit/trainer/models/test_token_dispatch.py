"""Rows come together by group, keep their order there, and come back."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from hpckit.trainer.models.token_dispatch import order_by, sort, unsort

LABELS = st.integers(1, 9).flatmap(
    lambda groups: st.tuples(st.just(groups), st.lists(st.integers(0, groups - 1), max_size=40))
)


@given(LABELS)
def test_rows_are_sorted_as_python_sorts_them(case: tuple[int, list[int]]) -> None:
    groups, labels = case
    order = order_by(torch.tensor(labels, dtype=torch.int64), groups)
    expected = sorted(range(len(labels)), key=lambda row: labels[row])  # which is stable
    assert order.source.tolist() == expected
    assert order.counts.tolist() == [labels.count(group) for group in range(groups)]


@given(LABELS)
def test_what_was_sorted_comes_back_and_so_do_gradients(case: tuple[int, list[int]]) -> None:
    groups, labels = case
    order = order_by(torch.tensor(labels, dtype=torch.int64), groups)
    rows = torch.arange(2.0 * len(labels)).view(-1, 2).requires_grad_()
    there = sort(rows, order)
    assert torch.equal(there, rows[order.source])
    assert torch.equal(unsort(there, order), rows)
    weights = torch.randn(rows.shape)
    (gradient,) = torch.autograd.grad(there, rows, weights)
    (plain,) = torch.autograd.grad(rows[order.source], rows, weights)
    assert torch.equal(gradient, plain)
