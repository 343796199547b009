"""Giving each other what one of them has read: every byte comes from the store once, and goes to
the other ranks that hold it too over the network between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from checkpointing.copying import cells_of
from checkpointing.plan import Parts, ReadGroup
from checkpointing.ranks import Ranks

MESSAGE = 64 << 20  # bytes that are packed into one message, at most; a larger part is one alone


def exchange(ranks: Ranks, groups: Sequence[ReadGroup], tensors: Mapping[str, Tensor]) -> None:
    """Fill what this rank holds but has not read. A collective of all ranks with groups in common,
    which every rank has in the same order.

    Args:
        tensors: CPU tensors (of DTensors, the local parts are meant), in which each rank has
            filled its own reads.

    Raises:
        RuntimeError: a peer is gone.
    """
    for group in groups:
        if len(group.ranks) > 1:
            members = ranks.among(group.ranks)
            for source, parts in zip(group.ranks, group.reads, strict=True):
                for cells in _messages(_cells(parts, tensors)):
                    _broadcast(cells, source, source == ranks.rank, members)


def _cells(parts: Parts, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
    for name, those in parts.items():
        for part in those:
            cells = cells_of(tensors[name], part.local)
            if cells.numel():
                yield cells


def _messages(cells: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    message: list[Tensor] = []
    for each in cells:
        if message and sum(c.nbytes for c in message) + each.nbytes > MESSAGE:
            yield message
            message = []
        message.append(each)
    if message:
        yield message


def _broadcast(cells: list[Tensor], source: int, is_mine: bool, members: dist.ProcessGroup) -> None:
    if len(cells) == 1 and cells[0].is_contiguous():
        dist.broadcast(_bytes(cells[0]), src=source, group=members)
        return
    sizes = [each.nbytes for each in cells]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8)
    places = [
        at.view(each.dtype).view(each.shape)
        for at, each in zip(torch.split(buffer, sizes), cells, strict=True)
    ]
    if is_mine:
        torch._foreach_copy_(places, cells)
    dist.broadcast(buffer, src=source, group=members)
    if not is_mine:
        torch._foreach_copy_(cells, places)


def _bytes(cells: Tensor) -> Tensor:
    return cells.view(-1).view(torch.uint8)
