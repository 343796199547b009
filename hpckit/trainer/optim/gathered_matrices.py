"""Computation on whole matrices that are sharded over the ranks of a mesh.

Each matrix is gathered on one rank, which computes, and the result is scattered again; as many
matrices at a time as there are ranks, so that all of them compute (Liu et al. 2025, section 2.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from checkpointing.layout.dtensor_placement import parts_at
from checkpointing.layout.tensor_layout import ShardPart

Compute = Callable[[Tensor], Tensor]


class MatrixGather:
    """Gathers matrices that are spread over one mesh. Its construction is a collective of the
    ranks."""

    def __init__(self, mesh: DeviceMesh) -> None:
        ranks = mesh.mesh.flatten().tolist()
        self._group = (
            mesh.get_group()
            if mesh.ndim == 1
            else dist.new_group(ranks, use_local_synchronization=True)
        )
        self._coordinates = [*product(*map(range, mesh.shape))]  # by rank of the group
        self._rank = ranks.index(dist.get_rank())
        self._shares: dict[DTensor, MatrixShard] = {}

    def compute(self, pairs: Sequence[tuple[DTensor, Tensor]], compute: Compute) -> None:
        """Replace this rank's parts by those of the results for the whole matrices. Collective.

        Args:
            pairs: a tensor with the shape and the sharding, and this rank's part.
            compute: from a whole matrix to one of the same shape and dtype.
        """
        for parameter, _ in pairs:
            if parameter not in self._shares:
                self._shares[parameter] = MatrixShard(parameter, self._coordinates)
        largest = sorted(pairs, key=lambda pair: -pair[0].numel())
        ranks = len(self._coordinates)
        for begin in range(0, len(largest), ranks):  # of similar size, so that ranks end together
            chosen = largest[begin : begin + ranks]
            shares = [self._shares[parameter] for parameter, _ in chosen]
            self._compute_each(shares, [part for _, part in chosen], compute)

    def _compute_each(
        self, shares: Sequence[MatrixShard], mine: Sequence[Tensor], compute: Compute
    ) -> None:
        """Compute `shares[i]` on rank i of the group."""
        me, ranks = self._rank, range(len(self._coordinates))
        own = shares[me] if me < len(shares) else None
        going = [share.cut(mine[i], me) for i, share in enumerate(shares) if share.gives(me, i)]
        gives = [share.count(me) if share.gives(me, i) else 0 for i, share in enumerate(shares)]
        takes = [own.count(rank) if own and own.gives(rank, me) else 0 for rank in ranks]
        came = self._exchange(going, gives, takes, mine[0])
        back: list[Tensor] = []
        if own:
            whole = came.new_empty(own.shape)
            for rank, flat in zip(ranks, torch.split(came, takes), strict=True):
                if takes[rank]:
                    own.paste(flat, whole, rank, local=False)
            result = compute(whole)
            back = [own.cut(result, rank, local=False) for rank in ranks]
        returns = [own.count(rank) if own else 0 for rank in ranks]
        wants = [share.count(me) for share in shares]
        came = self._exchange(back, returns, wants, mine[0])
        for share, part, flat in zip(shares, mine, torch.split(came, wants), strict=True):
            share.paste(flat, part, me, local=True)

    def _exchange(
        self, going: list[Tensor], gives: list[int], takes: list[int], like: Tensor
    ) -> Tensor:
        """Exchange numbers: `gives[i]` go to rank i of the group, `takes[i]` come from it."""
        ranks = len(self._coordinates)
        gives, takes = (some + [0] * (ranks - len(some)) for some in (gives, takes))
        flat = torch.cat(going) if going else like.new_empty(0)
        came = like.new_empty(sum(takes))
        dist.all_to_all_single(came, flat, takes, gives, group=self._group)
        return came


class MatrixShard:
    """Which elements of one matrix each rank of a group has."""

    def __init__(self, parameter: DTensor, coordinates: Sequence[tuple[int, ...]]) -> None:
        self.shape = tuple(parameter.shape)
        self._parts: list[tuple[ShardPart, ...]] = [
            parts_at(parameter, coordinate) for coordinate in coordinates
        ]
        copied = [i for i, p in enumerate(parameter.placements) if p.is_replicate()]
        self._copies = [tuple(coordinate[i] for i in copied) for coordinate in coordinates]

    def count(self, rank: int) -> int:
        """Return the number of elements that the rank has."""
        return sum(part.box.count for part in self._parts[rank])

    def gives(self, rank: int, to: int) -> bool:
        """Whether `rank` is the one, among those with the same elements, from which `to` takes
        them."""
        return self._copies[rank] == self._copies[to]

    def cut(self, tensor: Tensor, rank: int, *, local: bool = True) -> Tensor:
        """Return the elements of `rank` as a flat tensor, from its own part or from a whole
        matrix."""
        boxes = [part.local if local else part.box for part in self._parts[rank]]
        return (
            torch.cat([tensor[box.slices].flatten() for box in boxes])
            if boxes
            else tensor[:0].flatten()
        )

    def paste(self, flat: Tensor, tensor: Tensor, rank: int, *, local: bool) -> None:
        """Undo `cut`."""
        for part, cells in zip(
            self._parts[rank], torch.split(flat, self._sizes(rank)), strict=True
        ):
            box = part.local if local else part.box
            tensor[box.slices].copy_(cells.view(box.sizes))

    def _sizes(self, rank: int) -> list[int]:
        return [part.box.count for part in self._parts[rank]]
