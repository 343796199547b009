"""What trainers hand over: plain data beside the bytes in shared memory."""

from __future__ import annotations

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
        id: 8 hex digits that rank 0 drew and told the others; names its session in the store.
        owner: number of the take-over of the run that its saves go by; None: as they find it.
    """

    id: str
    world_size: int
    owner: int | None = None


@dataclass(frozen=True)
class SlotBox:
    """Where in a slot a box of a tensor lies, in C order."""

    name: str
    dtype: str
    shape: Shape  # of the whole tensor
    offsets: Shape  # of the box in it
    sizes: Shape  # of the box
    start: int  # bytes from the slot's start

    @property
    def length(self) -> int:
        """Bytes."""
        return Box(self.offsets, self.sizes).count * element(self.dtype).itemsize


@dataclass(frozen=True)
class SnapshotLayout:
    """The content of every snapshot of one rank, as long as its structure stays the same."""

    digest: str  # of the state's structure on this rank
    places: tuple[SlotBox, ...]
    groups: tuple[ReplicaGroup, ...] = ()  # what other ranks hold too, and is compared with theirs

    @cached_property
    def bytes(self) -> int:
        return sum(place.length for place in self.places)

    @cached_property
    def end(self) -> int:
        """Bytes of a slot that it takes."""
        return max((place.start + place.length for place in self.places), default=0)


@dataclass(frozen=True)
class RankSnapshot:
    """One rank's part of a state, whole in a slot."""

    generation: Generation
    rank: int
    step: int
    slot: int
    layout: SnapshotLayout
    values: Mapping[str, Json] = field(default_factory=dict)  # that this rank saves, encoded
    metrics: Mapping[str, float] = field(default_factory=dict)
    created: float = 0.0  # Unix time of save(), seconds
    deadline_s: float | None = None  # seconds from its arrival in which it should be durable
    fingerprints: bytes = b""  # of the layout's groups, as in a part record; none: not compared

    @property
    def replicas(self) -> RankFingerprints | None:
        """What is compared with other ranks'; None: nothing.

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
        """Hashes of the fingerprints of parameters and optimizers, by group: where two ranks' are
        equal, they had the same."""
        replicas = self.replicas
        return {} if replicas is None else replicas.digests


def grids(layout: SnapshotLayout) -> list[Grid]:
    """What `buckets.divide` cuts the places by."""
    return [_grid(place) for place in layout.places]


def _grid(place: SlotBox) -> Grid:
    itemsize = element(place.dtype).itemsize
    return Box(place.offsets, place.sizes), tile_shape(place.shape, itemsize), itemsize


def pieces(layout: SnapshotLayout, memory: NDArray[np.uint8]) -> list[TensorPiece]:
    """A snapshot's tensors, as views of its slot, shape (slot_bytes,)."""
    return [_piece(place, memory) for place in layout.places]


def _piece(place: SlotBox, memory: NDArray[np.uint8]) -> TensorPiece:
    view = memory[place.start : place.start + place.length]
    data = view.view(element(place.dtype).bits).reshape(place.sizes)
    return TensorPiece(place.name, place.dtype, place.shape, place.offsets, data)
