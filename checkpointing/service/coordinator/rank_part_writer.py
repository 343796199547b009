"""Makes the snapshots of this node's ranks durable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from checkpointing.codec import EncodeBudget, EncodeOutlook, is_store_faster
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.object_keys import SaveId
from checkpointing.service.malloc_trim import limit_malloc_thresholds
from checkpointing.service.snapshots import RankSnapshot
from checkpointing.service.spool.save_tier_choice import SaveRates
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import RunChunkIndex, StoredChunks, view_store
from checkpointing.store.write.manifest_commit import write_part
from checkpointing.store.write.part_writer import (
    GROUP,
    TensorPiece,
    WriteOptions,
    WrittenPart,
    write,
)

# For a part that may take little memory: the least number of packs and windows that it is divided
# into, unless they would be smaller than _MIN_PACK, in bytes.
_PACKS, _MIN_PACK = 256, 4 << 20
_WINDOWS, _MIN_WINDOW = 64, 2 * GROUP


@dataclass
class RankPartWriter:
    """Writes the parts of this node's ranks, one after another. Not thread-safe.

    Attributes:
        damaged: ids of checkpoints that failed to load; nothing refers to them.
        distrusted: packs in which damage was found.
        rank: the rank whose part is being written, or was written last.
    """

    store: Store
    run: str
    options: WriteOptions
    damaged: frozenset[str] = frozenset()
    distrusted: frozenset[bytes] = frozenset()
    rank: int | None = None
    _known: dict[int, RunChunkIndex] = field(default_factory=dict)  # by rank
    _budget: EncodeBudget | None = None
    _until_s: float | None = None  # monotonic time by which everything has to be written

    def look(self) -> StoredChunks:
        """Return what a save may refer to, as seen after the save was announced, for all ranks of
        this node."""
        view = view_store(self.store, self.run)
        # A checkpoint that refers to one that cannot be restored could not be restored either.
        whole = tuple(m for m in view.manifests if m.save.id not in self.damaged)
        seen = replace(view, marked_packs=view.marked_packs | self.distrusted, manifests=whole)
        return StoredChunks(self.store, self.run, seen)

    def write(
        self,
        save: SaveId,
        snapshot: RankSnapshot,
        pieces: Iterable[TensorPiece | None],
        stored: StoredChunks,
        arrived_s: float,
        done: Callable[[int], None] | None = None,
    ) -> WrittenPart:
        """Make a part durable and write its part record.

        Args:
            stored: as `view_store` returns it.
            pieces, done: as of `checkpointing.store.write.part_writer.write`. With `done` this
                takes little memory, with packs that are smaller for a small part.
            arrived_s: monotonic time from which the snapshot's deadline counts.

        Raises:
            StoreError: something could not be written; what was written is left for a sweep.
        """
        tensors = {place.name for place in snapshot.layout.places}
        index = self._of(snapshot.rank).index(stored, tensors)
        budget = self._next_budget(snapshot, arrived_s)
        if done is not None:
            limit_malloc_thresholds()
        self.rank = snapshot.rank
        written = write(
            self.store,
            save,
            pieces,
            snapshot.values,
            index,
            self.options
            if done is None
            else options_for_small_part(self.options, snapshot.layout.bytes),
            budget,
            done=done,
        )
        world_size = snapshot.generation.world_size
        header = ManifestHeader(
            save,
            snapshot.created,
            world_size,
            snapshot.metrics,
            certified=snapshot.certified,
        )
        write_part(self.store, header, snapshot.rank, written, snapshot.replicas)
        return written

    def committed(self, save: SaveId, written: Mapping[int, WrittenPart]) -> None:
        """Remember what these ranks have in the store now."""
        for rank, what in written.items():
            self._of(rank).committed(save, what.tables, what.packs)

    def rates(self) -> tuple[float | None, float | None]:
        """Return the raw bytes encoded and the stored bytes written per second, as last
        measured."""
        if self._budget is None:
            return None, None
        ahead = self._budget.outlook()
        return ahead.encode_rate, ahead.write_rate

    def measured(self) -> SaveRates:
        """Return the rates of all saves so far; the local disk is not measured here."""
        if self._budget is None:
            return SaveRates()
        return rates_of(self._budget.outlook())

    def hurry(self, deadline_s: float) -> None:
        """Set a deadline on the monotonic clock for the write under way and all later ones."""
        self._until_s = deadline_s
        if self._budget is not None:
            self._budget.hurry(deadline_s)

    def progress(self) -> float:
        """Return the raw bytes of the present rank's part that are still to be written."""
        return self._budget.outlook().raw_left if self._budget is not None else 0.0

    def _of(self, rank: int) -> RunChunkIndex:
        return self._known.setdefault(rank, RunChunkIndex(self.store, self.run))

    def _next_budget(self, snapshot: RankSnapshot, arrived_s: float) -> EncodeBudget:
        deadline = None
        if snapshot.deadline_s is not None:
            deadline = max(arrived_s + snapshot.deadline_s, time.monotonic())
        if self._until_s is not None:
            deadline = min(self._until_s, deadline or self._until_s)
        size = snapshot.layout.bytes
        if self._budget is None:
            self._budget = EncodeBudget(size, workers=self.options.threads)
        self._budget = self._budget.again(
            size, deadline=deadline, only_if_slower=self.options.only_if_slower
        )
        return self._budget


def rates_of(ahead: EncodeOutlook) -> SaveRates:
    """Return the rates by which a place for a snapshot is chosen: without that of encoding while
    nothing is encoded, as the store is faster."""
    encode_rate = None if is_store_faster(ahead) else ahead.encode_rate
    return SaveRates(encode_rate, ahead.share, ahead.write_rate)


def options_for_small_part(options: WriteOptions, size: int) -> WriteOptions:
    """Return options for a part of `size` bytes that may not take much memory beside its own."""
    pack = max(size // _PACKS, _MIN_PACK)
    window = max(size // _WINDOWS, _MIN_WINDOW)
    return replace(
        options,
        pack_bytes=min(options.pack_bytes, pack),
        window=min(options.window, window),
    )
