"""Writing one staged snapshot to the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from checkpointing.dtypes import as_array
from checkpointing.errors import CheckpointError, SaveError
from checkpointing.events import Events
from checkpointing.format.manifest import Header
from checkpointing.format.names import Save
from checkpointing.placement import Held, held, share
from checkpointing.pruning import Pruner
from checkpointing.ranks import Ranks
from checkpointing.staging import local
from checkpointing.store.commit import commit, write_part
from checkpointing.store.index import Index, Known, View, look
from checkpointing.store.session import Session
from checkpointing.store.store import Store
from checkpointing.store.writer import Options, Piece, Written, write
from checkpointing.values import Json

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class Snapshot:
    """A staged state on its way to the store."""

    step: int
    tensors: Mapping[str, Tensor]  # staged; nobody may write to them before the save has ended
    values: Mapping[str, Json]  # this rank's
    metrics: Mapping[str, float]
    created: float  # Unix time of save(), seconds
    started_s: float  # monotonic time of the call of save()


@dataclass(frozen=True)
class _Holds:
    """What a rank tells the others before they write."""

    step: int
    tensors: Mapping[str, Held]
    values: frozenset[str]


@dataclass
class Saver:
    """Writes snapshots, tells how it went, and prunes. `save` is a collective."""

    store: Store
    run: str
    ranks: Ranks
    events: Events
    pruner: Pruner
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        self._known = Known(self.store, self.run)
        self._session: Session | None = None  # of rank 0
        self._distrusted: frozenset[bytes] = frozenset()  # packs in which damage was found

    def save(self, snapshot: Snapshot) -> SaveError | None:
        """Write and commit one snapshot; why not, if it failed."""
        step = snapshot.step
        try:
            save, raw_bytes, new_bytes = self._save(snapshot)
        except (CheckpointError, RuntimeError) as error:  # the latter: a peer is gone
            failure = SaveError(f"saving step {step}: {error}")
            logger.error("%s; training goes on, earlier checkpoints are untouched", failure)
            self.events.emit("checkpoint_failed", step=step, error=str(failure))
            self.new_session()
            return failure
        self.events.emit(
            "checkpoint_committed",
            step=step,
            id=save.id,
            store=self.store.url,
            bytes=raw_bytes,
            new_bytes=new_bytes,
            seconds=time.monotonic() - snapshot.started_s,
        )
        if self.ranks.rank == 0:
            self.pruner.prune(newest=save.id)
        return None

    def new_session(self) -> None:
        """Save under another name from now on, so that a step may be saved a second time."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def distrust(self, packs: frozenset[bytes]) -> None:
        """Refer to nothing in these packs from now on."""
        self._distrusted |= packs

    def _save(self, snapshot: Snapshot) -> tuple[Save, int, int]:
        """The save, its raw bytes, and those that it added to the store, over all ranks."""
        group = self.ranks.background
        mine, values = self._plan(snapshot)
        begun = self.ranks.together(lambda: self._begin(snapshot.step), group)[0]
        assert begun is not None
        save, view = begun
        try:
            header = Header(save, snapshot.created, self.ranks.world_size, snapshot.metrics)
            kept: list[Written] = []

            def write_mine() -> tuple[int, int]:
                pieces = [_piece(name, snapshot.tensors[name], mine[name]) for name in mine]
                kept.append(self._write(header, pieces, values, self._known.index(view)))
                return kept[0].raw_bytes, kept[0].new_bytes

            sizes = self.ranks.together(write_mine, group)
            self._commit(save)
        finally:
            if self._session is not None:
                self._session.end(save.manifest())
        # not before: in the place of a manifest may be the mark of a save that was declared dead
        self._known.committed(save, kept[0].tables, kept[0].packs)
        return save, sum(raw for raw, _ in sizes), sum(new for _, new in sizes)

    def _plan(self, snapshot: Snapshot) -> tuple[Mapping[str, Held], Mapping[str, Json]]:
        """Which tensors and values this rank is to save: of values what ranks before it lack."""
        boxes = {n: part for n, t in snapshot.tensors.items() if (part := held(n, t))}
        holds = _Holds(snapshot.step, boxes, frozenset(snapshot.values))
        everybody = self.ranks.all_gather(holds, self.ranks.background)
        if any(other.step != snapshot.step for other in everybody):
            raise SaveError(f"ranks save different steps: {[other.step for other in everybody]}")
        before = {name for other in everybody[: self.ranks.rank] for name in other.values}
        values = {name: v for name, v in snapshot.values.items() if name not in before}
        mine = share([other.tensors for other in everybody])[self.ranks.rank]
        return {name: part for name, part in boxes.items() if name in mine}, values

    def _begin(self, step: int) -> tuple[Save, View] | None:
        """Announce the save, and look around for all ranks."""
        if self.ranks.rank != 0:
            return None
        if self._session is None:
            self._session = Session(self.store, self.run)
        save, view = self._session.begin(step), look(self.store, self.run)
        # what could not be restored would make this checkpoint one that cannot be restored either
        whole = tuple(m for m in view.manifests if m.save.id not in self.pruner.damaged)
        condemned = view.condemned | self._distrusted
        return save, replace(view, condemned=condemned, manifests=whole)

    def _write(
        self, header: Header, pieces: list[Piece], values: Mapping[str, Json], index: Index
    ) -> Written:
        written = write(self.store, header.save, pieces, values, index, self.options)
        write_part(self.store, header, self.ranks.rank, written)
        return written

    def _commit(self, save: Save) -> None:
        """Commit, on rank 0, and let every rank know."""
        session, is_committed = self._session, False

        def commit_it() -> None:
            nonlocal is_committed
            if session is not None:
                commit(self.store, save, self.ranks.world_size, check=session.check)
                is_committed = True

        try:
            self.ranks.together(commit_it, self.ranks.background)
        except RuntimeError as error:
            if not is_committed:
                raise
            # committed is committed, even if a peer was gone before it could be told
            logger.warning("%s is committed, but not every rank knows: %s", save.id, error)


def _piece(name: str, tensor: Tensor, part: Held) -> Piece:
    return Piece(name, part.dtype, part.shape, part.box.offsets, as_array(local(tensor)))
