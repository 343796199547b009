"""Bringing rows into the order of the groups they belong to, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class DispatchOrder:
    """Of rows by group; those of one group stay in their order."""

    taken: Tensor
    """(rows,): which row comes here."""
    place: Tensor
    """(rows,): where this row goes."""
    counts: Tensor
    """(groups,): rows of each."""


def order_by(labels: Tensor, groups: int) -> DispatchOrder:
    """That of rows whose groups are `labels` (rows,), integers below `groups`.

    No device is waited for: sizes depend on no number.
    """
    taken = labels.argsort(stable=True)
    place = torch.empty_like(taken)
    place[taken] = torch.arange(len(taken), device=taken.device)
    ends = torch.searchsorted(labels[taken], torch.arange(groups, device=labels.device), right=True)
    return DispatchOrder(taken, place, ends.diff(prepend=ends.new_zeros(1)))


def sort(rows: Tensor, order: DispatchOrder) -> Tensor:
    """(rows, width) by group."""
    out: Tensor = _Moved.apply(rows, order.taken, order.place)  # type: ignore[no-untyped-call]
    return out


def unsort(rows: Tensor, order: DispatchOrder) -> Tensor:
    """Back from `sort`."""
    out: Tensor = _Moved.apply(rows, order.place, order.taken)  # type: ignore[no-untyped-call]
    return out


class _Moved(torch.autograd.Function):
    """Rows change places, so gradients are moved back; torch would add each up, for all it knows of
    an index."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[index]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse], None, None
