"""Finds the newest whole checkpoint in the store and reads it, the same one on every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread

from torch import Tensor

from checkpointing.connections import Connections
from checkpointing.errors import CheckpointError, DamagedError, FormatError, StructureError
from checkpointing.events import CheckpointAdopted, CheckpointSkipped, ManifestRead, SaveAbandoned
from checkpointing.format.chunks import Chunk
from checkpointing.format.replica_differences import MarkedDifferences, summary
from checkpointing.format.tiles import Shape, is_on_grid
from checkpointing.format.torch_dtypes import as_array
from checkpointing.layout.dtensor_placement import structure
from checkpointing.layout.global_plan import GlobalPlan, ReadGroup
from checkpointing.layout.tensor_layout import Structure
from checkpointing.ranks.rank_group import first_reasons
from checkpointing.restore.node_manifest import ManifestReading, NodeManifest
from checkpointing.restore.read_broadcast import broadcast_reads
from checkpointing.staging.staging_buffers import StagingBuffers, local
from checkpointing.staging.tensor_copy import apart, cells_of, is_plain, note_written
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.structure_comparison import Inventory, StateRequirements, difference
from checkpointing.store.catalog import Catalog, read_catalog, suspected
from checkpointing.store.checkpoint import BoxRead, CheckedContent, Checkpoint
from checkpointing.store.read.chunk_copies import StoreCopies
from checkpointing.store.read.chunk_fetcher import DamagedChunk
from checkpointing.store.sessions.run_takeover import TakeoverResult, take_over
from checkpointing.store.store import StoredManifest

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class RestoredCheckpoint:
    """A checkpoint that was read and checked, before the live tensors have its content.

    Attributes:
        size: bytes of this rank's tensors.
        distrusted: packs in which damage was found.
        groups: groups of this rank.
        buffers: tensors whose content is in the staging buffers, by name.
        direct: tensors that get theirs from `content`; those that need not wait have it.
    """

    checkpoint: Checkpoint
    inventory: Inventory
    size: int
    distrusted: frozenset[bytes]
    groups: Sequence[ReadGroup]
    buffers: Mapping[str, Tensor]
    direct: Mapping[str, Tensor]
    content: CheckedContent

    def deliver(self) -> None:
        """Fill the live tensors that get their content directly."""
        self.content.deliver()
        note_written([local(tensor) for tensor in self.direct.values()])


@dataclass(frozen=True)
class _Readable:
    """A checkpoint that a rank could open, and what it needs from it."""

    checkpoint: Checkpoint
    inventory: Inventory
    tensors: Mapping[str, Tensor]  # the live tensors
    elsewhere: Collection[str]  # names of tensors that are filled before the live ones
    unused: Collection[str]  # names of tensors that nothing uses yet
    structure: Structure  # the structure of the tensors


class Restorer:
    """One attempt to restore from the store. Its public methods are collectives."""

    def __init__(
        self,
        connections: Connections,
        staging: StagingBuffers,
        skipped: dict[str, str],
        *,
        avoids_suspects: bool = True,
        prefers_certified: bool = False,
        is_fresh: bool = False,
    ) -> None:
        """
        Args:
            skipped: on rank 0: ids of checkpoints that cannot be used, and why.
            avoids_suspects: whether checkpoints with a difference mark are tried last.
            prefers_certified: whether checkpoints that are not certified are tried after the
                others.
            is_fresh: whether the live tensors have no content that a restore which fails must keep.
        """
        self.store, self.run, self.ranks = connections.store, connections.run, connections.ranks
        self.events, self.staging = connections.events, staging
        self.manifests = NodeManifest(connections.store, connections.ranks, connections.here)
        self.skipped, self.avoids_suspects = skipped, avoids_suspects
        self.prefers_certified, self.is_fresh = prefers_certified, is_fresh
        self.owner: int | None = None  # on rank 0: the number of the takeover
        # on rank 0: what the store has, as it was read after the takeover
        self.catalog = Catalog((), (), {})
        # on rank 0: ids of reduced checkpoints, and what is missing from them
        self.reduced: dict[str, str] = {}
        # on rank 0: ids of those that were skipped for their difference mark
        self.skipped_suspects: set[str] = set()
        self._offers: Iterator[StoredManifest] = iter(())  # on rank 0: what is left to try
        # on rank 0: the opened checkpoint and its inventory
        self._opened_candidate: tuple[Checkpoint, Inventory] | None = None

    def take_over(self, known: Catalog | None = None) -> bool:
        """Take the run over, so that this session is its only writer, and read which checkpoints it
        has then. Returns whether it has any, whole or damaged.

        Args:
            known: on rank 0: an earlier reading, see `read_catalog`.
        """
        return self.ranks.from_rank0(lambda: self._note_taken_over(self._take_over(known)))

    def begin_take_over(self, known: Catalog | None = None) -> Callable[[], bool]:
        """As `take_over`, in a thread of rank 0, for most of it is waiting for the storage. Returns
        the function that waits for it and returns what `take_over` does, or raises."""
        if self.ranks.rank != 0:
            return lambda: self.ranks.from_rank0(lambda: False)  # that of rank 0 counts
        under_way: Future[TakeoverResult] = Future()

        def work() -> None:
            try:
                under_way.set_result(self._take_over(known))
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                under_way.set_exception(error)

        # a daemon: a process that is interrupted does not wait for a storage out of reach
        Thread(target=work, name="takeover", daemon=True).start()
        return lambda: self.ranks.from_rank0(lambda: self._note_taken_over(under_way.result()))

    def read_newest(self, target: LoadTarget) -> RestoredCheckpoint:
        """Read and check the newest whole checkpoint; `target` is not changed, unless it is fresh.

        Raises:
            CheckpointError: all checkpoints are damaged.
            FormatError, StructureError: the newest whole checkpoint does not fit this state.
        """
        self._offers = self._candidates()
        failed: tuple[StoredManifest, str] | None = None  # the last one that was tried
        while True:
            stored = self.ranks.from_rank0(partial(self._next, failed))
            problem, readable = self.ranks.all_or_none(partial(self._open_readable, stored, target))
            problems = [one for one in self.ranks.all_gather(problem, self.ranks.control) if one]
            restored = None
            if not problems:
                assert readable is not None
                self._require_match(stored, target.wants(), readable.inventory)
                groups = self._planned(readable.structure).read_groups(self.ranks.rank)
                names = tensors_read(groups, self.ranks.rank)
                share = partial(self.manifests.share_groups, readable.checkpoint, names)
                self.ranks.all_or_none(share)
                problem, restored = self.ranks.all_or_none(partial(self._read, readable, groups))
            packs = restored.distrusted if restored else frozenset[bytes]()
            reading = self.manifests.reading(readable.checkpoint) if readable else None
            answers = self.ranks.all_gather((problem, packs, reading), self.ranks.control)
            self.manifests.close()
            problems = [text for text, _, _ in answers if text]
            if restored is not None and not problems:
                self._report(stored, [one for _, _, one in answers if one])
                broadcast_reads(self.ranks, restored.groups, restored.buffers)
                distrusted = frozenset[bytes]().union(*(packs for _, packs, _ in answers))
                return replace(restored, distrusted=distrusted)
            failed = stored, first_reasons(problems)

    def _next(self, failed: tuple[StoredManifest, str] | None) -> StoredManifest:
        """Returns the checkpoint to try (on rank 0).

        Args:
            failed: the one that was tried before, and why it cannot be used. If another process has
                revised it meanwhile, it is tried again as it is now.
        """
        if failed is not None:
            stored, reason = failed
            is_gone = all(one.key != stored.key for one in self.store.manifests(self.run))
            if is_gone and self._is_revised(stored):
                logger.warning("%s was revised meanwhile: %s", self._where(stored.save.id), reason)
                self._offers = self._candidates()
            else:
                self._skip(stored.save.id, stored.save.step, reason)
        return next(self._offers)

    def _take_over(self, known: Catalog | None) -> TakeoverResult:
        found = take_over(self.store, self.run)
        self.owner = found.owner
        self.catalog = read_catalog(self.store, self.run, known=known)
        return found

    def _note_taken_over(self, found: TakeoverResult) -> bool:
        for id_ in found.committed:
            self.events.emit(CheckpointAdopted(step=int(id_.partition("-")[0]), id=id_))
        for id_ in found.abandoned:
            self.events.emit(SaveAbandoned(step=int(id_.partition("-")[0]), id=id_))
        return bool(self.catalog.entries or self.catalog.problems)

    def _candidates(self) -> Iterator[StoredManifest]:
        """Yield the checkpoints to try, best first (on rank 0). If none is left this raises; it
        never just ends."""
        suspects, newest_first = self._newest_first()
        certified = {e.stored for e in self.catalog.entries if e.document.header.certified}

        def rank(stored: StoredManifest) -> tuple[bool, bool]:
            return stored in suspects, self.prefers_certified and stored not in certified

        for stored in sorted(newest_first, key=rank):
            try:
                checkpoint = self.manifests.open(stored)
                if dropped := checkpoint.header.dropped:  # training cannot resume from it
                    self.reduced[checkpoint.id] = f"retention removed {', '.join(dropped)}"
                    continue
                self._opened_candidate = checkpoint, Inventory.of(checkpoint)
            except FileNotFoundError:
                if self._is_revised(stored):
                    yield from self._candidates()
                    return
                continue  # pruned meanwhile by another process
            except FormatError as error:  # not damage; an older checkpoint would lose training
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
                    "restoring %s, whose replicas differ: %s",
                    self._where(stored.save.id),
                    summary(marked),
                )
            if self.prefers_certified and stored not in certified:
                logger.warning(
                    "restoring %s, which is not certified: no certified one can be used",
                    self._where(stored.save.id),
                )
            yield stored
        raise CheckpointError(self._none_whole_message())

    def _newest_first(self) -> tuple[dict[StoredManifest, MarkedDifferences], list[StoredManifest]]:
        """Returns the last revision of every checkpoint, including those that cannot be read, with
        its difference mark if it has one."""
        entries = self.catalog.entries
        times = {entry.stored: entry.document.header.created for entry in entries}
        for stored in self.catalog.last_revisions(self.catalog.problems):
            times[stored] = stored.modified
        times = {stored: at for stored, at in times.items() if stored.save.id not in self.skipped}
        suspects = suspected(entries) if self.avoids_suspects else {}
        ordered = sorted(times, key=lambda stored: (stored.save.step, times[stored]), reverse=True)
        return suspects, ordered

    def _is_revised(self, gone: StoredManifest) -> bool:
        """Read the catalog again. Returns whether the checkpoint of a manifest that is gone has
        another revision now."""
        self.catalog = read_catalog(self.store, self.run)
        return any(entry.stored.save == gone.save for entry in self.catalog.entries)

    def _open_readable(
        self, stored: StoredManifest, target: LoadTarget
    ) -> tuple[str | None, _Readable | None]:
        """Returns what this rank is to read, or why it cannot, if the manifest is damaged."""
        try:
            checkpoint, inventory = self._opened(stored)
        except (DamagedError, FileNotFoundError) as error:
            return f"rank {self.ranks.rank}: {error}", None
        target.form(inventory)
        tensors = target.leaves.tensors
        # tensors that the checkpoint does not have are reported separately
        fitting = {n: t for n, t in tensors.items() if n in inventory.tensors}
        found = structure(fitting, ())
        elsewhere, unused = target.elsewhere(), target.unused()
        return None, _Readable(checkpoint, inventory, tensors, elsewhere, unused, found)

    def _opened(self, stored: StoredManifest) -> tuple[Checkpoint, Inventory]:
        candidate = self._opened_candidate
        if candidate is not None and candidate[0].stored == stored:
            return self.manifests.share(stored, candidate[0]), candidate[1]
        checkpoint = self.manifests.share(stored)
        return checkpoint, Inventory.of(checkpoint)

    def _planned(self, mine: Structure) -> GlobalPlan:
        """Returns the plan for the states of all ranks. Collective."""
        ranks = self.ranks
        return GlobalPlan(ranks.all_gather_alike(mine, lambda: mine.digest, ranks.control))

    def _require_match(
        self, stored: StoredManifest, mine: StateRequirements, inventory: Inventory
    ) -> None:
        """Raise StructureError if the states of all ranks do not match a checkpoint. Collective."""
        wants = self.ranks.gather_distinct(mine, mine.digest, self.ranks.control)
        if text := difference(wants, inventory):
            raise StructureError(f"the state does not match {self._where(stored.save.id)}:{text}")

    def _report(self, stored: StoredManifest, readings: Sequence[ManifestReading]) -> None:
        self.events.emit(
            ManifestRead(
                step=stored.save.step,
                id=stored.save.id,
                readers=sum(one.requests > 0 for one in readings),
                ranks=len(readings),
                requests=sum(one.requests for one in readings),
                bytes=sum(one.bytes for one in readings),
                reason=next((one.problem for one in readings if one.problem), None),
            )
        )

    def _read(
        self, readable: _Readable, groups: Sequence[ReadGroup]
    ) -> tuple[str | None, RestoredCheckpoint | None]:
        """Read this rank's share, for itself and for others. Returns why not, if it is damaged."""
        tensors = readable.tensors
        specs = readable.checkpoint.tensors()
        fresh = tensors.keys() if self.is_fresh else readable.unused
        tiles = {name: spec.tile for name, spec in specs.items() if name not in fresh}
        direct = directly_filled(tensors, groups, tiles, readable.elsewhere)
        buffers = self.staging.buffers({n: t for n, t in tensors.items() if n not in direct})
        mine = [
            replace(one, waits=one.tensor in direct and one.tensor not in fresh)
            for one in reads(groups, self.ranks.rank, {**buffers, **direct})
        ]
        try:
            content = readable.checkpoint.read_checked(mine, StoreCopies([self.store]))
        except (DamagedError, FileNotFoundError) as error:
            return f"rank {self.ranks.rank}: {error}", None
        for damage in content.healed:
            logger.warning("%s was read from another copy: %s", readable.checkpoint.id, damage)
        return None, RestoredCheckpoint(
            readable.checkpoint,
            readable.inventory,
            sum(local(tensor).nbytes for tensor in tensors.values()),
            _packs(content.healed),
            groups,
            buffers,
            direct,
            content,
        )

    def _skip(self, id_: str, step: int, reason: str) -> None:
        self.skipped[id_] = reason
        logger.warning("skipping damaged checkpoint %s: %s", self._where(id_), reason)
        self.events.emit(CheckpointSkipped(step=step, id=id_, reason=reason))

    def _skip_suspect(self, stored: StoredManifest, marked: MarkedDifferences) -> None:
        """Report, once, a checkpoint with a difference mark that is newer than the one that is
        restored."""
        if stored.save.id in self.skipped_suspects:
            return
        self.skipped_suspects.add(stored.save.id)
        reason = f"its replicas differ: {summary(marked)}"
        logger.error("skipping %s and using an older one: %s", self._where(stored.save.id), reason)
        self.events.emit(CheckpointSkipped(step=stored.save.step, id=stored.save.id, reason=reason))

    def _where(self, id_: str) -> str:
        return f"checkpoint {id_} of run {self.run!r} in {self.store.url}"

    def _none_whole_message(self) -> str:
        reasons = {**self.skipped, **self.reduced}
        lines = [f"\n  {name}: {reason}" for name, reason in reasons.items()]
        return (
            f"no checkpoint of run {self.run!r} in {self.store.url} can be used:{''.join(lines)}\n"
            "repair them (hpckit ckpt repair), or use another run name to start from the beginning"
        )


def tensors_read(groups: Iterable[ReadGroup], rank: int) -> set[str]:
    """Returns the tensors of which this rank is to read something."""
    return {name for group in groups for name in group.reads[group.ranks.index(rank)]}


def reads(groups: Iterable[ReadGroup], rank: int, buffers: Mapping[str, Tensor]) -> list[BoxRead]:
    """Returns the boxes that this rank is to read, with the buffers that they go into."""
    return [
        BoxRead(name, part.box, as_array(local(buffers[name]))[part.local.slices])
        for group in groups
        for name, parts in group.reads[group.ranks.index(rank)].items()
        for part in parts
    ]


def directly_filled(
    tensors: Mapping[str, Tensor],
    groups: Iterable[ReadGroup],
    tiles: Mapping[str, Shape],
    elsewhere: Collection[str],
) -> dict[str, Tensor]:
    """Returns the live tensors that need no staging buffer, since the checked chunks are copied
    into them, immediately or after they were kept: those in host memory that no other rank holds
    and that share memory with no other tensor.

    Args:
        tensors: the live tensors, by name.
        groups: groups of this rank.
        tiles: the extents of the tiles, of which a chunk is one or a part, of each tensor whose
            chunks are kept: those that need parts of chunks are left out, as whole chunks would
            take more memory than buffers.
        elsewhere: names of tensors that are filled before the live ones.
    """
    cells = [cells_of(tensor) for tensor in tensors.values()]
    fitting = {
        name
        for name, one, is_apart in zip(tensors, cells, apart(cells), strict=True)
        if is_apart and is_plain(one) and one.is_contiguous()
    }
    return {
        name: tensors[name]
        for group in groups
        if len(group.ranks) == 1
        for name, parts in group.reads[0].items()
        if name in fitting
        and name not in elsewhere
        and (
            name not in tiles
            or all(is_on_grid(part.box, tensors[name].shape, tiles[name]) for part in parts)
        )
    }


def _packs(damages: Iterable[DamagedChunk]) -> frozenset[bytes]:
    """Returns the packs that hold a damaged chunk or one of its bases."""
    found = set()
    for damage in damages:
        chunk: Chunk | None = damage.want.chunk
        while chunk is not None:
            found.add(chunk.pack)
            chunk = chunk.base
    return frozenset(found)
