"""Stages a state through memory that is much smaller than the state: slower, but bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from checkpointing.errors import StageError
from checkpointing.format.tiles import Box, Shape, tile_shape, whole
from checkpointing.format.torch_dtypes import dtype_name
from checkpointing.staging import host_memory
from checkpointing.staging.arena import Arena
from checkpointing.staging.buckets import (
    BUCKET_BYTES,
    BUCKETS,
    Bucket,
    BucketPart,
    Grid,
    bucket_sizes,
    divide,
    largest_tile,
)
from checkpointing.staging.slot_layout import SlotEntry, StagedSnapshot
from checkpointing.staging.slot_memory import SlotMemory, copy_all
from checkpointing.staging.stager import Require, StagePiece, cells
from checkpointing.staging.tensor_copy import places_for


class BucketStager:
    """Copies pieces through a few buckets of shared memory, which the service empties meanwhile.

    Args:
        bucket_bytes: wanted size of a bucket; smaller for a state that is not much larger.
        buckets: the largest number of buckets; at least two.
        require: as for `Stager`; called with the bytes of a bucket and the number of buckets.
    """

    def __init__(
        self,
        bucket_bytes: int = BUCKET_BYTES,
        buckets: int = BUCKETS,
        *,
        require: Require = host_memory.require,
    ) -> None:
        self._wanted = (bucket_bytes, buckets)
        self._require = require
        self._memory: SlotMemory | None = None
        self.buckets, self.bucket_bytes = 0, 0  # none before the first prepare
        self.arenas = 0  # number of the present arena, counted from 1

    @property
    def arena(self) -> Arena:
        """The present arena. Bucket i begins at i * bucket_bytes.

        Raises:
            StageError: nothing was prepared yet.
        """
        if self._memory is None:
            raise StageError("there is no arena yet: call prepare() first")
        return self._memory.arena

    def prepare(self, pieces: Sequence[StagePiece]) -> bool:
        """Allocate the memory for pieces like these: a tenth of their bytes, or more if these are
        few. No bucket is smaller than the largest part of a piece in one tile.

        Returns:
            Whether the arena is a new one; the previous one is closed here.

        Raises:
            StageError: there is not enough memory.
        """
        sources = cells(pieces)
        count, size = self._sizes(_grids(pieces, sources))
        is_new = (count, size) != (self.buckets, self.bucket_bytes)
        if is_new:
            self.close()
            self._require(size, count)
            self._memory = SlotMemory(count * size)
            self._memory.await_memory(count * size)
            self.buckets, self.bucket_bytes = count, size
            self.arenas += 1
        assert self._memory is not None
        if any(source.is_cuda for source in sources):
            self._memory.pin()
        return is_new

    def stage_bucketed(
        self,
        pieces: Sequence[StagePiece],
        send: Callable[[Bucket], None],
        free: Callable[[], int],
    ) -> int:
        """Copy all pieces, bucket by bucket; the state may change again on return.

        A piece that is larger than a bucket is cut along the tiles of the whole tensor.

        Args:
            send: called with each full bucket; need not wait until it is read.
            free: returns the index of a bucket that is not being read (at first each of them,
                once), and blocks until there is one. An exception from it ends the staging.

        Returns:
            Bytes that were copied.
        """
        self.prepare(pieces)
        sources = cells(pieces)
        filled = list(divide(_grids(pieces, sources), self.bucket_bytes))
        for number, (parts, offsets) in enumerate(filled):
            content = self._fill(free(), pieces, sources, parts, offsets)
            send(Bucket(content, tuple(parts), number, number == len(filled) - 1))
        return sum(source.nbytes for source in sources)

    def needs(self, grids: Sequence[Grid]) -> int:
        """Returns the bytes of new memory that `prepare` would take for pieces of these grids; 0 if
        none."""
        count, size = self._sizes(grids)
        return 0 if (count, size) == (self.buckets, self.bucket_bytes) else count * size

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        memory, self._memory, self.buckets, self.bucket_bytes = self._memory, None, 0, 0
        if memory is not None:
            memory.close()

    def _sizes(self, grids: Sequence[Grid]) -> tuple[int, int]:
        total = sum(box.count * itemsize for box, _, itemsize in grids)
        return bucket_sizes(total, *self._wanted, largest_tile(grids))

    def _fill(
        self,
        bucket: int,
        pieces: Sequence[StagePiece],
        sources: Sequence[Tensor],
        parts: Sequence[BucketPart],
        offsets: Sequence[int],
    ) -> StagedSnapshot:
        if not 0 <= bucket < self.buckets:
            raise ValueError(f"free() gave {bucket}: buckets are 0 to {self.buckets - 1}")
        start = bucket * self.bucket_bytes
        memory = self.arena.view(start, self.bucket_bytes)
        boxes = [sources[part.piece].detach()[part.box.slices] for part in parts]
        places = places_for(memory, offsets, boxes)
        copy_all(places, boxes)
        entries = tuple(
            _entry(pieces[part.piece], part.box.sizes, offset)
            for part, offset in zip(parts, offsets, strict=True)
        )
        size = sum(box.nbytes for box in boxes)
        return StagedSnapshot(self.arenas, bucket, start, entries, size)


def _grids(pieces: Sequence[StagePiece], sources: Sequence[Tensor]) -> list[Grid]:
    return [_grid(piece, source) for piece, source in zip(pieces, sources, strict=True)]


def _grid(piece: StagePiece, source: Tensor) -> Grid:
    """Returns the piece's box in the whole tensor, and the tensor's grid."""
    itemsize = source.element_size()
    sizes = tuple(source.shape)
    if piece.shape is None or piece.offsets is None:
        return whole(sizes), tile_shape(sizes, itemsize), itemsize
    return Box(piece.offsets, sizes), tile_shape(piece.shape, itemsize), itemsize


def _entry(piece: StagePiece, sizes: Shape, offset: int) -> SlotEntry:
    return SlotEntry(piece.name, dtype_name(piece.tensor.dtype), sizes, offset)
