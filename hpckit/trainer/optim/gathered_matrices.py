"""Computation on whole matrices that are sharded over the ranks of a mesh.

Each matrix is gathered on one rank, which computes, and the result is scattered again. As many
matrices are processed at a time as there are ranks, so that all ranks compute (Liu et al. 2025,
section 2.3).
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
    """Gathers matrices that are sharded over one mesh. Its construction is a collective of the
    ranks of the mesh."""

    def __init__(self, mesh: DeviceMesh) -> None:
        ranks = mesh.mesh.flatten().tolist()
        self._group = (
            mesh.get_group()
            if mesh.ndim == 1
            else dist.new_group(ranks, use_local_synchronization=True)
        )
        self._coordinates = [*product(*map(range, mesh.shape))]  # by rank of the group
        self._rank = ranks.index(dist.get_rank())
        self._shards: dict[DTensor, MatrixShard] = {}

    def compute(self, pairs: Sequence[tuple[DTensor, Tensor]], compute: Compute) -> None:
        """Replace this rank's parts by its parts of what `compute` returns. Collective.

        Args:
            pairs: tensors with the shape and the sharding, each with this rank's part.
            compute: takes a whole matrix and returns one of the same shape and dtype.
        """
        for parameter, _ in pairs:
            if parameter not in self._shards:
                self._shards[parameter] = MatrixShard(parameter, self._coordinates)
        largest = sorted(pairs, key=lambda pair: -pair[0].numel())
        ranks = len(self._coordinates)
        for begin in range(
            0, len(largest), ranks
        ):  # of similar size, so that all ranks take as long
            chosen = largest[begin : begin + ranks]
            shards = [self._shards[parameter] for parameter, _ in chosen]
            self._compute_each(shards, [part for _, part in chosen], compute)

    def _compute_each(
        self, shards: Sequence[MatrixShard], parts: Sequence[Tensor], compute: Compute
    ) -> None:
        """Compute the matrix of `shards[i]` on rank i of the group."""
        me, ranks = self._rank, range(len(self._coordinates))
        own = shards[me] if me < len(shards) else None
        outgoing = [s.cut(parts[i], me) for i, s in enumerate(shards) if s.is_sender(me, i)]
        send = [s.count(me) if s.is_sender(me, i) else 0 for i, s in enumerate(shards)]
        receive = [own.count(rank) if own and own.is_sender(rank, me) else 0 for rank in ranks]
        received = self._exchange(outgoing, send, receive, parts[0])
        results: list[Tensor] = []
        if own:
            whole = received.new_empty(own.shape)
            for rank, flat in zip(ranks, torch.split(received, receive), strict=True):
                if receive[rank]:
                    own.paste(flat, whole, rank, local=False)
            result = compute(whole)
            results = [own.cut(result, rank, local=False) for rank in ranks]
        send = [own.count(rank) if own else 0 for rank in ranks]
        receive = [shard.count(me) for shard in shards]
        received = self._exchange(results, send, receive, parts[0])
        for shard, part, flat in zip(shards, parts, torch.split(received, receive), strict=True):
            shard.paste(flat, part, me, local=True)

    def _exchange(
        self, outgoing: list[Tensor], send: list[int], receive: list[int], like: Tensor
    ) -> Tensor:
        """Send `send[i]` elements to rank i of the group, and return those that were received, of
        which `receive[i]` come from it."""
        ranks = len(self._coordinates)
        send, receive = (sizes + [0] * (ranks - len(sizes)) for sizes in (send, receive))
        flat = torch.cat(outgoing) if outgoing else like.new_empty(0)
        received = like.new_empty(sum(receive))
        dist.all_to_all_single(received, flat, receive, send, group=self._group)
        return received


class MatrixShard:
    """The elements of one matrix that each rank of a group has."""

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

    def is_sender(self, rank: int, to: int) -> bool:
        """Whether `rank` sends its elements to the rank `to`, as one of the ranks that have the
        same elements does."""
        return self._copies[rank] == self._copies[to]

    def cut(self, tensor: Tensor, rank: int, *, local: bool = True) -> Tensor:
        """Return the elements of `rank` as a flat tensor, from its own part (`local`) or from a
        whole matrix."""
        boxes = [part.local if local else part.box for part in self._parts[rank]]
        return (
            torch.cat([tensor[box.slices].flatten() for box in boxes])
            if boxes
            else tensor[:0].flatten()
        )

    def paste(self, flat: Tensor, tensor: Tensor, rank: int, *, local: bool) -> None:
        """Copy the elements that `cut` returned into a part (`local`) or into a whole matrix."""
        for part, cells in zip(
            self._parts[rank], torch.split(flat, self._sizes(rank)), strict=True
        ):
            box = part.local if local else part.box
            tensor[box.slices].copy_(cells.view(box.sizes))

    def _sizes(self, rank: int) -> list[int]:
        return [part.box.count for part in self._parts[rank]]
