"""Finding the newest whole checkpoint and reading it, the same one on every rank."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from checkpointing.errors import CheckpointError, DamagedError, FormatError, StructureError
from checkpointing.events import Events
from checkpointing.format.chunks import Chunk
from checkpointing.format.replica_differences import MarkedDifferences, summary
from checkpointing.format.torch_dtypes import as_array
from checkpointing.layout.dtensor_placement import structure
from checkpointing.layout.global_plan import GlobalPlan, ReadGroup
from checkpointing.layout.tensor_layout import Structure
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore.read_broadcast import broadcast_reads
from checkpointing.staging.stager import StagingBuffers, local
from checkpointing.state.item_adapters import LoadTarget
from checkpointing.state.structure_comparison import Inventory, difference
from checkpointing.store.catalog import committed, suspected
from checkpointing.store.checkpoint import BoxRead, Checkpoint
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.read.chunk_fetcher import DamagedChunk
from checkpointing.store.sessions.run_takeover import take_over
from checkpointing.store.store import Store, StoredManifest

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class RestoredCheckpoint:
    """What was read into the staging buffers."""

    checkpoint: Checkpoint
    inventory: Inventory
    size: int  # bytes of this rank's tensors
    distrusted: frozenset[bytes]  # packs in which damage was found
    groups: Sequence[ReadGroup]  # of this rank
    buffers: Mapping[str, Tensor]  # by name


@dataclass(frozen=True)
class _Readable:
    """A checkpoint that a rank could open, and what it wants from it."""

    checkpoint: Checkpoint
    inventory: Inventory
    tensors: Mapping[str, Tensor]  # the live ones
    structure: Structure  # of them


@dataclass
class Restorer:
    """One attempt to restore. Its public methods are collectives."""

    store: Store
    run: str
    ranks: RankGroup
    staging: StagingBuffers
    events: Events
    skipped: dict[str, str] = field(default_factory=dict)  # on rank 0: id of no use -> why
    owner: int | None = None  # on rank 0: the number of the take-over
    reduced: dict[str, str] = field(default_factory=dict)  # on rank 0: id -> what is not in it
    avoids_suspects: bool = True  # whether one whose replicas differ comes after all others
    skipped_suspects: set[str] = field(default_factory=set)  # on rank 0: ids of such
    _offered: tuple[Checkpoint, Inventory] | None = None  # on rank 0: opened, and looked through

    def take_over(self) -> bool:
        """Become the only writer of the run; whether it has checkpoints, whole or damaged."""
        return self.ranks.from_rank0(self._take_over)

    def read_newest(self, target: LoadTarget) -> RestoredCheckpoint:
        """Read the newest whole checkpoint into the staging buffers; `target` is only looked at.

        Raises:
            CheckpointError: all are damaged.
            FormatError, StructureError: the newest whole one cannot go into this state.
        """
        offers = self._offers()
        while True:
            stored = self.ranks.from_rank0(lambda: next(offers))
            problem, readable = self.ranks.all_or_none(partial(self._look, stored, target))
            wants = target.wants() if readable is not None else None
            looks = self.ranks.all_gather(
                (problem, readable and readable.structure, wants), self.ranks.control
            )
            restored = None
            if not (problems := [text for text, _, _ in looks if text]):
                assert readable is not None
                if text := difference((w for _, _, w in looks if w), readable.inventory):
                    where = self._where(stored.save.id)
                    raise StructureError(f"the state does not match {where}:{text}")
                plan = GlobalPlan([found for _, found, _ in looks if found])
                groups = plan.read_groups(self.ranks.rank)
                problem, restored = self.ranks.all_or_none(partial(self._read, readable, groups))
            packs = restored.distrusted if restored else frozenset[bytes]()
            answers = self.ranks.all_gather((problem, packs), self.ranks.control)
            problems = [text for text, _ in answers if text]
            if restored is not None and not problems:
                broadcast_reads(self.ranks, restored.groups, restored.buffers)
                distrusted = frozenset[bytes]().union(*(packs for _, packs in answers))
                return replace(restored, distrusted=distrusted)
            if self.ranks.rank == 0:
                self._skip(stored.save.id, stored.save.step, "; ".join(problems))

    def _take_over(self) -> bool:
        found = take_over(self.store, self.run)
        self.owner = found.owner
        for id_ in found.committed:
            self.events.emit("checkpoint_adopted", step=int(id_.partition("-")[0]), id=id_)
        for id_ in found.abandoned:
            self.events.emit("save_abandoned", step=int(id_.partition("-")[0]), id=id_)
        whole, problems = committed(self.store, self.run)
        return bool(whole or problems)

    def _offers(self) -> Iterator[StoredManifest]:
        """Checkpoints to try, best first (on rank 0); ends with an error, never silently."""
        suspects, newest_first = self._newest_first()
        for stored in sorted(newest_first, key=lambda stored: stored in suspects):
            try:
                checkpoint = Checkpoint(self.store, stored)
                if dropped := checkpoint.header.dropped:  # nothing to go on training with
                    self.reduced[checkpoint.id] = f"retention took out {', '.join(dropped)}"
                    continue
                self._offered = checkpoint, Inventory.of(checkpoint)
            except FileNotFoundError:
                continue  # pruned meanwhile by somebody else
            except FormatError as error:  # no damage: going back behind it would lose training
                raise FormatError(f"{self._where(stored.save.id)}: {error}") from error
            except DamagedError as error:
                self._skip(stored.save.id, stored.save.step, str(error))
                continue
            if stored not in suspects:
                for other in newest_first[: newest_first.index(stored)]:
                    if other in suspects:
                        self._skip_suspect(other, suspects[other])
            marked = checkpoint.header.marked
            if self.avoids_suspects and marked is not None and marked.is_suspect:
                logger.error(
                    "restoring %s, and its replicas differ: %s",
                    self._where(stored.save.id),
                    summary(marked),
                )
            yield stored
        raise CheckpointError(self._none_whole())

    def _newest_first(self) -> tuple[dict[StoredManifest, MarkedDifferences], list[StoredManifest]]:
        """The last revision of all checkpoints, of those that cannot be read too; and what those
        are marked with of which replicas differ."""
        whole, problems = committed(self.store, self.run)
        times = {found.stored: found.document.header.created for found in whole}
        for stored in self.store.manifests(self.run):  # later revisions first
            if problems.pop(stored.save, None) is not None:
                times[stored] = stored.modified
        times = {stored: at for stored, at in times.items() if stored.save.id not in self.skipped}
        suspects = suspected(whole) if self.avoids_suspects else {}
        ordered = sorted(times, key=lambda stored: (stored.save.step, times[stored]), reverse=True)
        return suspects, ordered

    def _look(
        self, stored: StoredManifest, target: LoadTarget
    ) -> tuple[str | None, _Readable | None]:
        """What this rank is to read; or why it cannot, if the manifest is damaged."""
        try:
            checkpoint, inventory = self._opened(stored)
        except (DamagedError, FileNotFoundError) as error:
            return f"rank {self.ranks.rank}: {error}", None
        target.form(inventory)
        tensors = target.leaves.tensors
        # of those that do not fit, and are told of
        fitting = {n: t for n, t in tensors.items() if n in inventory.tensors}
        return None, _Readable(checkpoint, inventory, tensors, structure(fitting, ()))

    def _opened(self, stored: StoredManifest) -> tuple[Checkpoint, Inventory]:
        if self._offered is not None and self._offered[0].stored == stored:
            return self._offered
        checkpoint = Checkpoint(self.store, stored)
        return checkpoint, Inventory.of(checkpoint)

    def _read(
        self, readable: _Readable, groups: Sequence[ReadGroup]
    ) -> tuple[str | None, RestoredCheckpoint | None]:
        """Read what this rank is to read, for itself and for others; or why not, if it is
        damaged."""
        buffers = self.staging.buffers(readable.tensors)
        mine = reads(groups, self.ranks.rank, buffers)
        try:
            healed = readable.checkpoint.read_into(mine, StoreCopies([self.store]))
        except (DamagedError, FileNotFoundError) as error:
            return f"rank {self.ranks.rank}: {error}", None
        for damage in healed:
            logger.warning("%s was read from another copy: %s", readable.checkpoint.id, damage)
        packs = _packs(healed)
        return None, RestoredCheckpoint(
            readable.checkpoint, readable.inventory, self.staging.bytes, packs, groups, buffers
        )

    def _skip(self, id_: str, step: int, reason: str) -> None:
        self.skipped[id_] = reason
        logger.warning("skipping damaged checkpoint %s: %s", self._where(id_), reason)
        self.events.emit("checkpoint_skipped", step=step, id=id_, reason=reason)

    def _skip_suspect(self, stored: StoredManifest, marked: MarkedDifferences) -> None:
        """Once, of one that is newer than the one that is restored."""
        if stored.save.id in self.skipped_suspects:
            return
        self.skipped_suspects.add(stored.save.id)
        reason = f"its replicas differ: {summary(marked)}"
        logger.error("skipping %s for an older one: %s", self._where(stored.save.id), reason)
        self.events.emit(
            "checkpoint_skipped", step=stored.save.step, id=stored.save.id, reason=reason
        )

    def _where(self, id_: str) -> str:
        return f"checkpoint {id_} of run {self.run!r} in {self.store.url}"

    def _none_whole(self) -> str:
        reasons = {**self.skipped, **self.reduced}
        lines = [f"\n  {name}: {reason}" for name, reason in reasons.items()]
        return (
            f"no checkpoint of run {self.run!r} in {self.store.url} is of use:{''.join(lines)}\n"
            "repair them (hpckit ckpt repair), or use another run name to start from zero"
        )


def reads(groups: Iterable[ReadGroup], rank: int, buffers: Mapping[str, Tensor]) -> list[BoxRead]:
    """The boxes that this rank is to read, into these buffers."""
    return [
        BoxRead(name, part.box, as_array(local(buffers[name]))[part.local.slices])
        for group in groups
        for name, parts in group.reads[group.ranks.index(rank)].items()
        for part in parts
    ]


def _packs(damages: Iterable[DamagedChunk]) -> frozenset[bytes]:
    """Those that any of the damaged chunks, or its bases, lie in."""
    found = set()
    for damage in damages:
        chunk: Chunk | None = damage.want.chunk
        while chunk is not None:
            found.add(chunk.pack)
            chunk = chunk.base
    return frozenset(found)
