"""Exchanges what was read among ranks: every byte is read from the store once, and is sent to the
other ranks that hold it over the network between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpointing.format.torch_dtypes import as_bytes
from checkpointing.layout.global_plan import Parts, ReadGroup
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.staging.slot_layout import round_up
from checkpointing.staging.tensor_copy import cells_of
from checkpointing.torch_internals import foreach_copy

MESSAGE = 64 << 20  # largest number of bytes packed into one message; a larger part is sent alone
# bytes, the size of the largest element: each part in a message begins at a multiple of it
_ALIGNED = 16


def broadcast_reads(
    ranks: RankGroup, groups: Sequence[ReadGroup], tensors: Mapping[str, Tensor]
) -> None:
    """Fill in what this rank holds but has not read itself. Collective over all ranks that have
    groups in common, which every rank has in the same order.

    Args:
        tensors: CPU tensors (for DTensors, their local parts) into which each rank has read its own
            share.

    Raises:
        OtherRankError: another rank has ended.
    """
    for group in groups:
        if len(group.ranks) > 1:
            for source, parts in zip(group.ranks, group.reads, strict=True):
                for cells in _messages(_cells(parts, tensors)):
                    _broadcast(cells, ranks, tree(group.ranks, source, ranks.rank))


def _cells(parts: Parts, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
    for name, those in parts.items():
        for part in those:
            cells = cells_of(tensors[name], part.local)
            if cells.numel():
                yield cells


def _messages(cells: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    message: list[Tensor] = []
    size = 0
    for each in cells:
        if message and size + _message_bytes(each) > MESSAGE:
            yield message
            message, size = [], 0
        message.append(each)
        size += _message_bytes(each)
    if message:
        yield message


def _broadcast(cells: list[Tensor], ranks: RankGroup, place: BroadcastNode) -> None:
    if len(cells) == 1 and cells[0].is_contiguous():
        _send_along_tree(_bytes(cells[0]), ranks, place)
        return
    sizes = [_message_bytes(each) for each in cells]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8)
    places = [
        at[: each.nbytes].view(each.dtype).view(each.shape)
        for at, each in zip(torch.split(buffer, sizes), cells, strict=True)
    ]
    if place.parent is None:
        foreach_copy(places, cells)
    _send_along_tree(buffer, ranks, place)
    if place.parent is not None:
        foreach_copy(cells, places)


def _send_along_tree(message: Tensor, ranks: RankGroup, place: BroadcastNode) -> None:
    """Send a message along the tree, from rank to rank."""
    content = as_bytes(message)
    if place.parent is not None:
        ranks.receive_content(content, place.parent)
    for child in place.children:
        ranks.send_content(content, child)


@dataclass(frozen=True)
class BroadcastNode:
    """The place of a rank in a broadcast tree: the rank it receives from, and those it sends to, in
    order."""

    parent: int | None  # None: this rank is the source
    children: tuple[int, ...]


def tree(members: Sequence[int], source: int, rank: int) -> BroadcastNode:
    """Returns the place of `rank` in a binomial tree of `members`, in which the source sends log2
    of their number of times."""
    first = members.index(source)
    order = [*members[first:], *members[:first]]
    mine, bit = order.index(rank), 1
    while bit <= mine:
        bit *= 2
    parent = order[mine - bit // 2] if mine else None
    children = []
    while mine + bit < len(order):
        children.append(order[mine + bit])
        bit *= 2
    return BroadcastNode(parent, tuple(children))


def _message_bytes(cells: Tensor) -> int:
    """Returns the bytes that the cells take in a message."""
    return round_up(cells.nbytes, _ALIGNED)


def _bytes(cells: Tensor) -> Tensor:
    return cells.view(-1).view(torch.uint8)
