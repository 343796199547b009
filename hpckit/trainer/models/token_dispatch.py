"""The permutation of rows by the group that they belong to, and its inverse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class DispatchOrder:
    """The order of rows by group, which keeps the order within a group."""

    source: Tensor
    """(rows,): the index of each sorted row before the sorting."""
    place: Tensor
    """(rows,): the index of each row after the sorting."""
    counts: Tensor
    """(groups,): the number of rows of each group."""


def order_by(labels: Tensor, groups: int) -> DispatchOrder:
    """Return the order of rows whose groups are `labels` (rows,), integers below `groups`.

    It does not wait for the device, since no size depends on values.
    """
    source = labels.argsort(stable=True)
    place = torch.empty_like(source)
    place[source] = torch.arange(len(source), device=source.device)
    groups_in_order = torch.arange(groups, device=labels.device)
    ends = torch.searchsorted(labels[source], groups_in_order, right=True)
    return DispatchOrder(source, place, ends.diff(prepend=ends.new_zeros(1)))


def sort(rows: Tensor, order: DispatchOrder) -> Tensor:
    """Sort `rows` (rows, width) by group."""
    out: Tensor = _Permutation.apply(rows, order.source, order.place)  # type: ignore[no-untyped-call]
    return out


def unsort(rows: Tensor, order: DispatchOrder) -> Tensor:
    """Undo `sort`."""
    out: Tensor = _Permutation.apply(rows, order.place, order.source)  # type: ignore[no-untyped-call]
    return out


class _Permutation(torch.autograd.Function):
    """A permutation of rows whose backward pass is a permutation too, where indexing in torch would
    accumulate gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[index]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse], None, None
