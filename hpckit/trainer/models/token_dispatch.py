"""Sorting of rows by the group they belong to, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class DispatchOrder:
    """The order of rows by group, which is stable within a group."""

    taken: Tensor
    """(rows,): the source row of each sorted row."""
    place: Tensor
    """(rows,): the sorted place of each row."""
    counts: Tensor
    """(groups,): number of rows of each group."""


def order_by(labels: Tensor, groups: int) -> DispatchOrder:
    """Return the order of rows whose groups are `labels` (rows,), integers below `groups`.

    It does not synchronize with the device: sizes depend on no values.
    """
    taken = labels.argsort(stable=True)
    place = torch.empty_like(taken)
    place[taken] = torch.arange(len(taken), device=taken.device)
    ends = torch.searchsorted(labels[taken], torch.arange(groups, device=labels.device), right=True)
    return DispatchOrder(taken, place, ends.diff(prepend=ends.new_zeros(1)))


def sort(rows: Tensor, order: DispatchOrder) -> Tensor:
    """Sort (rows, width) by group."""
    out: Tensor = _Moved.apply(rows, order.taken, order.place)  # type: ignore[no-untyped-call]
    return out


def unsort(rows: Tensor, order: DispatchOrder) -> Tensor:
    """Undo `sort`."""
    out: Tensor = _Moved.apply(rows, order.place, order.taken)  # type: ignore[no-untyped-call]
    return out


class _Moved(torch.autograd.Function):
    """A permutation of rows whose backward pass is a permutation too; torch would accumulate
    gradients as for any index."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[index]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse], None, None
