"""One save after another, as a node takes part in them: as the one that leads, or as another."""

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
    fate_of_save,
    is_announced,
    last_epoch,
    newest_committed,
)
from checkpointing.service.coordinator.save_leader import (
    ImpossibleSaveError,
    LeaderMovedError,
    SaveLeader,
)
from checkpointing.service.registry.snapshot_registry import SnapshotRead
from checkpointing.service.service_counters import DurableCheckpoint, ServiceCounters
from checkpointing.service.snapshots import Generation, pieces
from checkpointing.store.sessions import run_ownership
from checkpointing.store.sessions.session_leases import abandon
from checkpointing.store.store import Store
from checkpointing.store.write.chunk_index import StoreView
from checkpointing.store.write.manifest_commit import having_parts
from checkpointing.store.write.part_writer import WrittenPart

logger = logging.getLogger("checkpointing")

_POLL_S, _MAX_POLL_S = 0.02, 2.0
_LOOK = 6  # requests of one look at what became of a save
_PACE = 2000.0  # of them a second, of all nodes together: S3 takes 5,500 for a prefix


def longest_poll_s(nodes: float) -> float:
    """Between two looks of one of so many nodes that wait for a commit, seconds."""
    return max(_MAX_POLL_S, nodes * _LOOK / _PACE)


@dataclass
class SaveAttempt:
    """A save under way."""

    generation: Generation
    ranks: frozenset[int]  # on this node
    save: SaveId
    leader: SaveLeader | None = None  # if this node leads
    epoch: int = 0
    written: dict[int, WrittenPart] = field(default_factory=dict)  # by rank
    done: set[int] = field(default_factory=set)  # ranks that have nothing left to write


class RegistryInterface(Protocol):
    """What a round needs of the service."""

    ledger: ServiceCounters

    def reading(
        self, generation: Generation, rank: int, step: int
    ) -> AbstractContextManager[SnapshotRead | None]: ...

    def tell(
        self, generation: Generation, kind: str, *, rank: int | None = None, **fields: Any
    ) -> None: ...

    def moved(self) -> None: ...

    def gives_up(self, generation: Generation) -> bool: ...

    @property
    def lost_ranks(self) -> frozenset[int]: ...

    def ranks_of(self, generation: Generation) -> frozenset[int]: ...


class SaveCoordinator:
    """Carries out saves. `lead`, `follow` and what comes after are for one thread."""

    def __init__(self, store: Store, config: ServiceConfig, floor: RegistryInterface) -> None:
        self.store, self._run, self._floor = store, config.run, floor
        self.writer = RankPartWriter(store, config.run, config.writing())
        self._leaders: dict[Generation, SaveLeader] = {}
        self._term = 0
        self._seen: set[bytes] = set()  # packs that were counted
        self.newest = -1  # the newest step that is known to be committed
        self.owners: dict[Generation, int] = {}  # of generations that do not say it themselves
        self._for_rank0: Callable[..., None] = lambda kind, **fields: None
        events = Events(lambda kind, **fields: self._for_rank0(kind, **fields), rank=0)
        self._pruner = Pruner(store, config.run, config.keep, events)

    def configure(self, config: ServiceConfig) -> None:
        """Write and prune by these settings from the next save on."""
        self.writer.options = config.writing()
        self._pruner.keep = config.keep

    def distrust(self, damaged: frozenset[str], packs: frozenset[bytes]) -> None:
        """Refer to none of these from now on."""
        self.writer.damaged |= damaged
        self.writer.distrusted |= packs
        self._pruner.damaged |= damaged

    def lead(
        self, generation: Generation, ranks: frozenset[int], step: int, term: int = 0
    ) -> SaveAttempt:
        """Announce a save.

        Args:
            term: above 0: this node leads in place of a lost one, for the so-manieth time.

        Raises:
            SaveError, StoreError: it could not be announced.
        """
        leader = self._leader(generation, term)
        return SaveAttempt(generation, ranks, leader.begin(step), leader)

    def take_back(self, generation: Generation, save: SaveId, term: int) -> None:
        """Announce no longer what a process before this one has committed.

        Raises:
            SaveError: nobody can tell what it announced.
            StoreError: the store is out of reach.
        """
        self._leader(generation, term).end_former(save)

    def follow(
        self, generation: Generation, ranks: frozenset[int], epoch: int
    ) -> SaveAttempt | None:
        """The save that another node leads now, if there is one.

        Raises:
            StoreError: the store is out of reach.
        """
        found = announced(self.store, self._run, generation, epoch)
        if found is None:
            return None
        return SaveAttempt(generation, ranks, found.save, epoch=found.epoch)

    def meet(self, generation: Generation) -> None:
        """Before its first save: one that does not say whose it is belongs to the present owner.

        Raises:
            StoreError: the store is out of reach.
        """
        if generation.owner is None and generation not in self.owners:
            self.owners[generation] = run_ownership.newest(self.store, self._run)

    def owner(self, generation: Generation) -> int | None:
        """The take-over that it goes by; None: not known yet."""
        return generation.owner if generation.owner is not None else self.owners.get(generation)

    def last_epoch(self, generation: Generation) -> int:
        """The epoch of the last save that was announced.

        Raises:
            StoreError: the store is out of reach.
        """
        return last_epoch(self.store, self._run, generation)

    def missed(self, generation: Generation, epoch: int) -> AnnouncedSave | None:
        """The newest save that was committed while nobody looked.

        Raises:
            StoreError: the store is out of reach.
        """
        return newest_committed(self.store, self._run, generation, epoch)

    def carry_out(self, round_: SaveAttempt) -> None:
        """Write this node's parts, and see the save through.

        Raises:
            HopelessError: some rank has not got this step.
            SaveError: it cannot be committed under this name.
            StoreError: something could not be written or read: calling this again goes on.
        """
        self._write_parts(round_)
        if round_.leader is not None:
            self._commit(round_, round_.leader)
        else:
            self._await_fate(round_)
        self.writer.committed(round_.save, round_.written)

    def give_up(self, round_: SaveAttempt) -> None:
        """So that no node waits for this save any longer."""
        if round_.leader is not None:
            round_.leader.give_up(round_.save)
        else:
            abandon(self.store, round_.save.manifest())

    def prune(self, round_: SaveAttempt) -> None:
        """What no policy keeps goes, if this node leads."""
        if round_.leader is None:
            return
        self._for_rank0 = lambda kind, **fields: self._floor.tell(
            round_.generation, kind, rank=0, **fields
        )
        self._pruner.prune(newest=round_.save.id)

    def close(self) -> None:
        for leader in self._leaders.values():
            leader.close()

    def _leader(self, generation: Generation, term: int) -> SaveLeader:
        for other in [g for g in self._leaders if g != generation or term != self._term]:
            self._leaders.pop(other).close()
        self._term, leader = term, self._leaders.get(generation)
        if leader is None:
            found = self.owners.get(generation)
            is_heir = term > 0
            leader = SaveLeader(self.store, self._run, generation, found, is_heir=is_heir)
            self._leaders[generation] = leader
        return leader

    def _write_parts(self, round_: SaveAttempt) -> None:
        view = self.writer.look()
        self.newest = max([self.newest, *(stored.save.step for stored in view.manifests)])
        step = round_.save.step
        left = round_.ranks - round_.done
        there = having_parts(self.store, round_.save, left)  # by a service before this one
        for rank in sorted(left):
            if rank in there:
                self._has_done(round_, rank)
                continue
            with self._floor.reading(round_.generation, rank, step) as taken:
                if taken is None:
                    raise ImpossibleSaveError(
                        f"{round_.save.id}: rank {rank} has not staged this step"
                    )
                written = self._write_once(round_, taken, view)
            if written is not None:
                round_.written[rank] = written
                self._floor.ledger.raw_bytes += written.raw_bytes
                self._floor.ledger.new_bytes += written.new_bytes
            self._has_done(round_, rank)

    def _write(self, round_: SaveAttempt, taken: SnapshotRead, view: StoreView) -> WrittenPart:
        snapshot, stream = taken.snapshot, taken.stream
        if stream is None:
            content = pieces(snapshot.layout, taken.memory)
            return self.writer.write(round_.save, snapshot, content, view, taken.arrived_s)
        coming = stream.pieces(functools.partial(self._floor.gives_up, round_.generation))
        try:
            return self.writer.write(
                round_.save, snapshot, coming, view, taken.arrived_s, stream.done
            )
        except StoreError as error:
            if not stream.is_begun:
                raise
            raise ImpossibleSaveError(
                f"step {snapshot.step} of rank {snapshot.rank} is lost as a whole, for its state "
                f"passed through buckets: {error}"
            ) from error

    def _write_once(
        self, round_: SaveAttempt, taken: SnapshotRead, view: StoreView
    ) -> WrittenPart | None:
        """None: another node, which holds the same, was first."""
        try:
            return self._write(round_, taken, view)
        except SaveError:
            save, rank = round_.save, taken.snapshot.rank
            if not having_parts(self.store, save, [rank]):
                raise
            logger.info("%s: rank %d is written by another node", save.id, rank)
            return None

    def _write_joined(self, round_: SaveAttempt) -> None:
        """Write also for the ranks of a node that was lost meanwhile.

        Raises:
            MovedError: it was the one that led, and this one does now.
        """
        joined = self._floor.ranks_of(round_.generation) - round_.ranks
        if 0 in joined:
            raise LeaderMovedError(f"{round_.save.id}: this node leads now")
        if joined:
            round_.ranks |= joined
            self._write_parts(round_)

    def _has_done(self, round_: SaveAttempt, rank: int) -> None:
        round_.done.add(rank)
        self._floor.moved()
        self._floor.tell(round_.generation, "written", rank=rank, step=round_.save.step)

    def _commit(self, round_: SaveAttempt, leader: SaveLeader) -> None:
        def given_up() -> bool:
            self._write_joined(round_)
            return self._floor.gives_up(round_.generation) or self._is_hopeless(round_)

        alone = len(round_.ranks) == round_.generation.world_size
        content = leader.commit(round_.save, alone=alone, given_up=given_up)
        leader.end(round_.save)
        self._tell_committed(round_, content)

    def _tell_committed(self, round_: SaveAttempt, content: ManifestContent) -> None:
        new = {
            pack: size
            for pack, size in content.packs.items()
            if pack_session(pack) == round_.save.session and pack not in self._seen
        }
        self._seen |= content.packs.keys()
        raw_bytes = sum(table.raw_bytes for table in content.items.values())
        created = content.header.created
        self.remember(round_.save, created, raw_bytes)
        mark = content.header.marked
        if mark is not None:
            logger.error("%s: ranks hold different replicas: %s", round_.save.id, summary(mark))
        self._floor.tell(
            round_.generation,
            "committed",
            step=round_.save.step,
            id=round_.save.id,
            bytes=raw_bytes,
            new_bytes=sum(new.values()),
            differing=None if mark is None else event_fields(mark),
        )

    def _await_fate(self, round_: SaveAttempt) -> None:
        """Wait for what the leading node makes of the save."""
        save, poll_s = round_.save, _POLL_S
        nodes = round_.generation.world_size / len(round_.ranks)
        longest_s = longest_poll_s(nodes)
        while True:
            is_meant = is_announced(self.store, save)
            if (found := fate_of_save(self.store, save)) is SaveFate.COMMITTED:
                break
            self._look_for_next(round_)
            if found is SaveFate.ABANDONED:
                raise ImpossibleSaveError(f"{save.id}: a node has given it up")
            if not is_meant:
                raise ImpossibleSaveError(f"{save.id}: the leading node has taken it back")
            self._write_joined(round_)
            if self._floor.gives_up(round_.generation):
                raise SaveError(f"{save.id}: nobody waits for its commit any longer")
            if self._is_hopeless(round_):
                raise ImpossibleSaveError(f"{save.id}: a part is lost with its node")
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, longest_s)
        self.remember(save, time.time(), sum(w.raw_bytes for w in round_.written.values()))
        self._floor.tell(round_.generation, "committed", step=save.step, id=save.id)

    def _is_hopeless(self, round_: SaveAttempt) -> bool:
        """Whether a part will never come, or nobody is left to commit it."""
        lost = self._floor.lost_ranks - round_.ranks
        if not lost or 0 in lost:
            return bool(lost)
        return lost > having_parts(self.store, round_.save, lost)

    def _look_for_next(self, round_: SaveAttempt) -> None:
        """Raises:
        HopelessError, MovedError: the leading node has gone on from the save.
        """
        save = round_.save
        now = announced(self.store, self._run, round_.generation, round_.epoch)
        if now is None or now.save == save:
            return
        if now.save.step == save.step and now.epoch > round_.epoch:
            raise LeaderMovedError(f"{save.id} goes on as {now.save.id}")
        if now.save.step >= save.step:
            raise ImpossibleSaveError(f"{save.id}: the leading node has gone on to {now.save.id}")

    def remember(self, save: SaveId, created: float, raw_bytes: int) -> None:
        """A save is committed."""
        now = time.time()
        self.newest = max(self.newest, save.step)
        self._floor.ledger.committed += 1
        self._floor.ledger.error = None
        last = DurableCheckpoint(save.step, save.id, created, now, raw_bytes, now - created)
        self._floor.ledger.last = last
