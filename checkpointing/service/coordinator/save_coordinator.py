"""Carries out the saves of a node, one after another, as the save leader or as a follower."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from checkpointing.errors import SaveError, StoreError
from checkpointing.events import Events
from checkpointing.format.manifest import ManifestContent
from checkpointing.format.object_keys import SaveId, pack_session
from checkpointing.format.replica_differences import event_fields, summary
from checkpointing.retention_pruner import Pruner
from checkpointing.service.config import ServiceConfig
from checkpointing.service.coordinator.rank_part_writer import RankPartWriter
from checkpointing.service.coordinator.save_announcement import (
    AnnouncedSave,
    SaveFate,
    announced,
    announced_instead,
    fate_of_save,
    is_announced,
    last_epoch,
    newest_committed,
)
from checkpointing.service.coordinator.save_leader import SaveLeader
from checkpointing.service.registry.snapshot_registry import SnapshotRead
from checkpointing.service.save_errors import ImpossibleSaveError, LeaderMovedError
from checkpointing.service.service_counters import DurableCheckpoint, ServiceCounters
from checkpointing.service.snapshots import Generation, pieces
from checkpointing.store.sessions import run_ownership
from checkpointing.store.sessions.session_leases import abandon
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import StoredChunks
from checkpointing.store.write.manifest_commit import having_parts
from checkpointing.store.write.part_writer import WrittenPart

logger = logging.getLogger("checkpointing")

_POLL_S, _MAX_POLL_S = 0.02, 2.0
_LOOK = 6  # number of requests that one look at the outcome of a save takes
_PACE = 2000.0  # such requests a second from all nodes together: S3 allows 5,500 for a prefix


def longest_poll_s(nodes: float) -> float:
    """Return the seconds between two looks of a node, when so many nodes wait for a commit."""
    return max(_MAX_POLL_S, nodes * _LOOK / _PACE)


@dataclass
class SaveAttempt:
    """A save attempt that is under way."""

    generation: Generation
    ranks: frozenset[int]  # on this node
    save: SaveId
    leader: SaveLeader | None = None  # set if this node leads
    epoch: int = 0
    written: dict[int, WrittenPart] = field(default_factory=dict)  # by rank
    done: set[int] = field(default_factory=set)  # ranks that have nothing left to write


class RegistryInterface(Protocol):
    """What a save attempt needs from the service."""

    ledger: ServiceCounters

    def reading(
        self, generation: Generation, rank: int, step: int
    ) -> AbstractContextManager[SnapshotRead | None]: ...

    def notify(
        self, generation: Generation, kind: str, *, rank: int | None = None, **fields: Any
    ) -> None: ...

    def moved(self) -> None: ...

    def gives_up(self, generation: Generation) -> bool: ...

    def pause(self, seconds: float) -> None: ...

    def await_parts(self, generation: Generation, missing: int) -> None: ...

    @property
    def lost_ranks(self) -> frozenset[int]: ...

    def ranks_of(self, generation: Generation) -> frozenset[int]: ...


class SaveCoordinator:
    """Carries out saves. `lead`, `follow` and what comes after them must be called from one
    thread."""

    def __init__(self, store: Store, config: ServiceConfig, registry: RegistryInterface) -> None:
        self.store, self._run, self._registry = store, config.run, registry
        self.writer = RankPartWriter(store, config.run, config.writing())
        self._leaders: dict[Generation, SaveLeader] = {}
        self._term = 0
        self._seen: set[bytes] = set()  # packs that were counted
        self.newest = -1  # the newest step that is known to be committed
        self.owners: dict[Generation, int] = {}  # owners of generations that do not name theirs
        self._for_rank0: Callable[..., None] = lambda kind, **fields: None
        events = Events(lambda kind, **fields: self._for_rank0(kind, **fields), rank=0)
        self._pruner = Pruner(store, config.run, config.keep, events)

    def configure(self, config: ServiceConfig) -> None:
        """Write and prune with these settings from the next save on."""
        self.writer.options = config.writing()
        self._pruner.keep = config.keep

    def distrust(self, damaged: frozenset[str], packs: frozenset[bytes]) -> None:
        """Do not refer to these checkpoints and packs from now on."""
        self.writer.damaged |= damaged
        self.writer.distrusted |= packs
        self._pruner.damaged |= damaged

    def skip(self, checkpoints: frozenset[str]) -> None:
        """Count these checkpoints as none of those from which the run continues, from now on."""
        self._pruner.skipped |= checkpoints

    def lead(
        self, generation: Generation, ranks: frozenset[int], step: int, term: int = 0
    ) -> SaveAttempt:
        """Announce a save.

        Args:
            term: above 0, this node leads in place of a lost one; counts how often it has come to
                lead.

        Raises:
            SaveError, StoreError: it could not be announced.
        """
        leader = self._leader(generation, term)
        return SaveAttempt(generation, ranks, leader.begin(step), leader)

    def take_back(self, generation: Generation, save: SaveId, term: int) -> None:
        """Withdraw the announcement of a save that an earlier process has committed.

        Raises:
            SaveError: it cannot be known what that process had announced.
            StoreError: the store is out of reach.
        """
        self._leader(generation, term).end_former(save)

    def follow(
        self, generation: Generation, ranks: frozenset[int], epoch: int
    ) -> SaveAttempt | None:
        """Return the save that another node leads now; None if there is none.

        Raises:
            StoreError: the store is out of reach.
        """
        found = announced(self.store, self._run, generation, epoch)
        if found is None:
            return None
        return SaveAttempt(generation, ranks, found.save, epoch=found.epoch)

    def meet(self, generation: Generation) -> None:
        """Look up the owner of a generation before its first save: one that does not name its owner
        belongs to the present owner of the run.

        Raises:
            StoreError: the store is out of reach.
        """
        if generation.owner is None and generation not in self.owners:
            self.owners[generation] = run_ownership.newest(self.store, self._run)

    def owner(self, generation: Generation) -> int | None:
        """Return the number of the takeover that a generation belongs to; None if it is not known
        yet."""
        return generation.owner if generation.owner is not None else self.owners.get(generation)

    def last_epoch(self, generation: Generation) -> int:
        """Return the epoch of the last save that was announced.

        Raises:
            StoreError: the store is out of reach.
        """
        return last_epoch(self.store, self._run, generation)

    def missed(self, generation: Generation, epoch: int) -> AnnouncedSave | None:
        """Return the newest save that was committed while this node did not look.

        Raises:
            StoreError: the store is out of reach.
        """
        return newest_committed(self.store, self._run, generation, epoch)

    def carry_out(self, attempt: SaveAttempt) -> None:
        """Write this node's parts, and wait for the commit, or commit if this node leads.

        Raises:
            ImpossibleSaveError: some rank does not have this step.
            SaveError: it cannot be committed under this name.
            StoreError: something could not be written or read; calling this again continues.
        """
        self._write_parts(attempt)
        if attempt.leader is not None:
            self._commit(attempt, attempt.leader)
        else:
            self._await_outcome(attempt)
        self.writer.committed(attempt.save, attempt.written)

    def give_up(self, attempt: SaveAttempt) -> None:
        """Give up a save, so that no node waits for it any longer."""
        if attempt.leader is not None:
            attempt.leader.give_up(attempt.save)
        else:
            abandon(self.store, attempt.save.manifest())

    def prune(self, attempt: SaveAttempt) -> None:
        """Prune by the retention policies, if this node leads."""
        if attempt.leader is None:
            return
        self._for_rank0 = lambda kind, **fields: self._registry.notify(
            attempt.generation, kind, rank=0, **fields
        )
        self._pruner.prune(newest=attempt.save.id)

    def close(self) -> None:
        for leader in self._leaders.values():
            leader.close()

    def _leader(self, generation: Generation, term: int) -> SaveLeader:
        for other in [g for g in self._leaders if g != generation or term != self._term]:
            self._leaders.pop(other).close()
        self._term, leader = term, self._leaders.get(generation)
        if leader is None:
            found = self.owners.get(generation)
            replaces_leader = term > 0
            leader = SaveLeader(
                self.store, self._run, generation, found, replaces_leader=replaces_leader
            )
            self._leaders[generation] = leader
        return leader

    def _write_parts(self, attempt: SaveAttempt) -> None:
        stored = self.writer.look()
        self.newest = max([self.newest, *(one.save.step for one in stored.view.manifests)])
        step = attempt.save.step
        left = attempt.ranks - attempt.done
        # parts written by an earlier process of this service
        there = having_parts(self.store, attempt.save, left)
        for rank in sorted(left):
            if rank in there:
                self._has_done(attempt, rank)
                continue
            with self._registry.reading(attempt.generation, rank, step) as taken:
                if taken is None:
                    raise ImpossibleSaveError(
                        f"{attempt.save.id}: rank {rank} has not staged this step"
                    )
                written = self._write_once(attempt, taken, stored)
            if written is not None:
                attempt.written[rank] = written
                self._registry.ledger.raw_bytes += written.raw_bytes
                self._registry.ledger.new_bytes += written.new_bytes
            self._has_done(attempt, rank)

    def _write(
        self, attempt: SaveAttempt, taken: SnapshotRead, stored: StoredChunks
    ) -> WrittenPart:
        snapshot, stream = taken.snapshot, taken.stream
        if stream is None:
            content = pieces(snapshot.layout, taken.memory)
            return self.writer.write(attempt.save, snapshot, content, stored, taken.arrived_s)
        coming = stream.pieces(functools.partial(self._registry.gives_up, attempt.generation))
        try:
            return self.writer.write(
                attempt.save, snapshot, coming, stored, taken.arrived_s, stream.done
            )
        except StoreError as error:
            if not stream.is_begun:
                raise
            raise ImpossibleSaveError(
                f"step {snapshot.step} of rank {snapshot.rank} is lost completely, because its "
                f"state was staged through buckets: {error}"
            ) from error

    def _write_once(
        self, attempt: SaveAttempt, taken: SnapshotRead, stored: StoredChunks
    ) -> WrittenPart | None:
        """Write one rank's part; None if another node, which holds the same snapshot, was first."""
        try:
            return self._write(attempt, taken, stored)
        except SaveError:
            save, rank = attempt.save, taken.snapshot.rank
            if not having_parts(self.store, save, [rank]):
                raise
            logger.info("%s: rank %d is written by another node", save.id, rank)
            return None

    def _write_joined(self, attempt: SaveAttempt) -> None:
        """Write the parts of the ranks of a node that was lost meanwhile, too.

        Raises:
            LeaderMovedError: the lost node was the leader, and this node is it now.
        """
        joined = self._registry.ranks_of(attempt.generation) - attempt.ranks
        if 0 in joined:
            raise LeaderMovedError(f"{attempt.save.id}: this node is now the save leader")
        if joined:
            attempt.ranks |= joined
            self._write_parts(attempt)

    def _has_done(self, attempt: SaveAttempt, rank: int) -> None:
        attempt.done.add(rank)
        self._registry.moved()
        self._registry.notify(attempt.generation, "written", rank=rank, step=attempt.save.step)

    def _commit(self, attempt: SaveAttempt, leader: SaveLeader) -> None:
        def given_up() -> bool:
            self._write_joined(attempt)
            return self._registry.gives_up(attempt.generation) or self._cannot_complete(attempt)

        alone = len(attempt.ranks) == attempt.generation.world_size
        content = leader.commit(
            attempt.save,
            alone=alone,
            given_up=given_up,
            await_parts=functools.partial(self._registry.await_parts, attempt.generation),
            pause=self._registry.pause,
        )
        leader.end(attempt.save)
        self._report_committed(attempt, content)

    def _report_committed(self, attempt: SaveAttempt, content: ManifestContent) -> None:
        new = {
            pack: size
            for pack, size in content.packs.items()
            if pack_session(pack) == attempt.save.session and pack not in self._seen
        }
        self._seen |= content.packs.keys()
        raw_bytes = sum(table.raw_bytes for table in content.items.values())
        created = content.header.created
        self.remember(attempt.save, created, raw_bytes)
        mark = content.header.marked
        if mark is not None:
            logger.error("%s: ranks hold different replicas: %s", attempt.save.id, summary(mark))
        self._registry.notify(
            attempt.generation,
            "committed",
            step=attempt.save.step,
            id=attempt.save.id,
            bytes=raw_bytes,
            new_bytes=sum(new.values()),
            differing=None if mark is None else event_fields(mark),
        )

    def _await_outcome(self, attempt: SaveAttempt) -> None:
        """Wait for the outcome of the save, which the leader decides."""
        save, poll_s = attempt.save, _POLL_S
        nodes = attempt.generation.world_size / len(attempt.ranks)
        longest_s = longest_poll_s(nodes)
        while True:
            is_meant = is_announced(self.store, save)
            if (found := fate_of_save(self.store, save)) is SaveFate.COMMITTED:
                break
            self._look_for_next(attempt)
            if found is SaveFate.ABANDONED:
                raise ImpossibleSaveError(f"{save.id}: a node has given it up")
            if not is_meant:
                raise ImpossibleSaveError(f"{save.id}: the save leader has withdrawn it")
            self._write_joined(attempt)
            if self._registry.gives_up(attempt.generation):
                raise SaveError(f"{save.id}: no process waits for its commit any longer")
            if self._cannot_complete(attempt):
                raise ImpossibleSaveError(f"{save.id}: a part is lost with its node")
            self._registry.pause(poll_s)
            poll_s = min(2 * poll_s, longest_s)
        self.remember(save, time.time(), sum(w.raw_bytes for w in attempt.written.values()))
        self._registry.notify(attempt.generation, "committed", step=save.step, id=save.id)

    def _cannot_complete(self, attempt: SaveAttempt) -> bool:
        """Return whether a part will never come, or no node is left to commit the save."""
        lost = self._registry.lost_ranks - attempt.ranks
        if not lost or 0 in lost:
            return bool(lost)
        return lost > having_parts(self.store, attempt.save, lost)

    def _look_for_next(self, attempt: SaveAttempt) -> None:
        """Look whether the leader has announced another save.

        Raises:
            ImpossibleSaveError, LeaderMovedError: the leader no longer makes this save.
        """
        save = attempt.save
        now = announced_instead(self.store, attempt.generation, save, attempt.epoch)
        if now is None:
            return
        if now.save.step == save.step and now.epoch > attempt.epoch:
            raise LeaderMovedError(f"{save.id} continues as {now.save.id}")
        raise ImpossibleSaveError(f"{save.id}: the save leader has continued with {now.save.id}")

    def remember(self, save: SaveId, created: float, raw_bytes: int) -> None:
        """Record that a save is committed."""
        now = time.time()
        self.newest = max(self.newest, save.step)
        self._registry.ledger.committed += 1
        self._registry.ledger.error = None
        last = DurableCheckpoint(save.step, save.id, created, now, raw_bytes, now - created)
        self._registry.ledger.last = last
