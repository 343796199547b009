"""Making this node's snapshots durable."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from checkpointing.codec import Budget
from checkpointing.format.manifest import Header
from checkpointing.format.names import Save
from checkpointing.service.snapshots import Snapshot
from checkpointing.store.commit import write_part
from checkpointing.store.index import Known, View, look
from checkpointing.store.store import Store
from checkpointing.store.writer import Options, Piece, Written, write


@dataclass
class Writer:
    """Writes one rank's part after another. For one thread.

    Attributes:
        damaged: ids of checkpoints that failed to load: nothing refers to them.
        distrusted: packs in which damage was found.
        rank: whose part is being written, or was last.
    """

    store: Store
    run: str
    options: Options
    damaged: frozenset[str] = frozenset()
    distrusted: frozenset[bytes] = frozenset()
    rank: int | None = None
    _known: dict[int, Known] = field(default_factory=dict)  # by rank
    _budget: Budget | None = None

    def look(self) -> View:
        """What may be referred to, seen after the save was announced."""
        view = look(self.store, self.run)
        # what could not be restored would make this checkpoint one that cannot be restored either
        whole = tuple(m for m in view.manifests if m.save.id not in self.damaged)
        return replace(view, condemned=view.condemned | self.distrusted, manifests=whole)

    def write(
        self, save: Save, snapshot: Snapshot, pieces: Sequence[Piece], view: View, arrived_s: float
    ) -> Written:
        """Make a part durable and say so.

        Args:
            arrived_s: monotonic time from which the snapshot's deadline counts.

        Raises:
            StoreError: something could not be written; what was is left for prune.
        """
        index = self._of(snapshot.rank).index(view)
        budget = self._next_budget(snapshot, arrived_s)
        self.rank = snapshot.rank
        written = write(
            self.store,
            save,
            pieces,
            snapshot.values,
            index,
            self.options,
            budget,
        )
        world_size = snapshot.generation.world_size
        header = Header(save, snapshot.created, world_size, snapshot.metrics)
        write_part(self.store, header, snapshot.rank, written)
        return written

    def committed(self, save: Save, written: Mapping[int, Written]) -> None:
        """Remember what these ranks have in the store now."""
        for rank, what in written.items():
            self._of(rank).committed(save, what.tables, what.packs)

    def rates(self) -> tuple[float | None, float | None]:
        """Raw bytes encoded and stored bytes written per second, as last measured."""
        if self._budget is None:
            return None, None
        ahead = self._budget.outlook()
        return ahead.encode_rate, ahead.write_rate

    def hurry(self, deadline_s: float) -> None:
        """Give what is under way a deadline, on the monotonic clock."""
        if self._budget is not None:
            self._budget.hurry(deadline_s)

    def progress(self) -> float:
        """Raw bytes of the rank under way that are still to be written."""
        return self._budget.outlook().raw_left if self._budget is not None else 0.0

    def _of(self, rank: int) -> Known:
        return self._known.setdefault(rank, Known(self.store, self.run))

    def _next_budget(self, snapshot: Snapshot, arrived_s: float) -> Budget:
        deadline = None
        if snapshot.deadline_s is not None:
            deadline = max(arrived_s + snapshot.deadline_s, time.monotonic())
        size = snapshot.layout.bytes
        if self._budget is None:
            self._budget = Budget(size, workers=self.options.threads, deadline=deadline)
        else:
            self._budget = self._budget.again(size, deadline=deadline)
        return self._budget
