"""What trainers hand over to the service: plain data that describes the bytes in shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.element_types import element
from checkpointing.format.replica_differences import RankFingerprints, ReplicaGroup, from_bytes
from checkpointing.format.tiles import Box, Shape, tile_shape
from checkpointing.format.values.json_values import Json
from checkpointing.staging.buckets import Grid
from checkpointing.store.write.part_writer import TensorPiece


@dataclass(frozen=True)
class Generation:
    """One start of a job: the ranks that save together.

    Attributes:
        id: 8 hex digits that rank 0 drew and sent to the other ranks; names the session in the
            store.
        owner: number of the takeover of the run that its saves belong to; None: the present one.
    """

    id: str
    world_size: int
    owner: int | None = None


@dataclass(frozen=True)
class SlotBox:
    """The place of a box of a tensor in a slot, in C order."""

    name: str
    dtype: str
    shape: Shape  # shape of the whole tensor
    offsets: Shape  # offsets of the box in the tensor
    sizes: Shape  # sizes of the box
    start: int  # bytes from the start of the slot

    @cached_property
    def length(self) -> int:
        """The size of the box in bytes."""
        return math.prod(self.sizes) * element(self.dtype).itemsize


@dataclass(frozen=True)
class SnapshotLayout:
    """The content of every snapshot of one rank, as long as the structure of the state stays the
    same."""

    digest: str  # hash of the structure of the state on this rank
    places: tuple[SlotBox, ...]
    # content that other ranks hold too and that is compared with theirs
    groups: tuple[ReplicaGroup, ...] = ()

    @cached_property
    def bytes(self) -> int:
        return sum(place.length for place in self.places)

    @cached_property
    def end(self) -> int:
        """The number of bytes of a slot that a snapshot takes."""
        return max((place.start + place.length for place in self.places), default=0)


@dataclass(frozen=True)
class RankSnapshot:
    """One rank's part of a state, whole in a slot."""

    generation: Generation
    rank: int
    step: int
    slot: int
    layout: SnapshotLayout
    # the values that this rank saves, encoded
    values: Mapping[str, Json] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    created: float = 0.0  # Unix time of the call of `save`, in seconds
    deadline_s: float | None = None  # seconds from its arrival within which it should be durable
    # of the groups of the layout, as in a part record; empty: not compared
    fingerprints: bytes = b""
    certified: str = ""  # as of `ManifestHeader`

    @property
    def replicas(self) -> RankFingerprints | None:
        """Return what is compared with other ranks; None if nothing is.

        Raises:
            DamagedError: the fingerprints are not those of the groups.
        """
        if not self.fingerprints:
            return None
        where = f"the snapshot of step {self.step} of rank {self.rank}"
        groups = self.layout.groups
        return RankFingerprints(groups, from_bytes(self.fingerprints, groups, where))

    @property
    def digests(self) -> dict[str, str]:
        """Return hashes of the fingerprints of parameters and optimizers, by group: where those of
        two ranks are equal, the ranks had the same content."""
        replicas = self.replicas
        return {} if replicas is None else replicas.digests


def grids(layout: SnapshotLayout) -> list[Grid]:
    """Return the grids by which `buckets.divide` cuts the boxes."""
    return [_grid(place) for place in layout.places]


def _grid(place: SlotBox) -> Grid:
    itemsize = element(place.dtype).itemsize
    return Box(place.offsets, place.sizes), tile_shape(place.shape, itemsize), itemsize


def pieces(layout: SnapshotLayout, memory: NDArray[np.uint8]) -> list[TensorPiece]:
    """Return the tensors of a snapshot as views of its slot, whose shape is (slot_bytes,)."""
    return [_piece(place, memory) for place in layout.places]


def _piece(place: SlotBox, memory: NDArray[np.uint8]) -> TensorPiece:
    view = memory[place.start : place.start + place.length]
    data = view.view(element(place.dtype).bits).reshape(place.sizes)
    return TensorPiece(place.name, place.dtype, place.shape, place.offsets, data)


def newest_common_step(held: Mapping[int, frozenset[int]], ranks: frozenset[int]) -> int | None:
    """Return the newest step that all of these ranks have.

    Args:
        held: steps by rank.
    """
    if not ranks:
        return None
    common = frozenset.intersection(*(held.get(rank, frozenset()) for rank in ranks))
    return max(common, default=None)
