"""Chooses the snapshot in the memory of the nodes from which a run can be resumed, if there is
one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from checkpointing.connections import Connections
from checkpointing.errors import ServiceError
from checkpointing.format.object_keys import SaveId
from checkpointing.restore import memory_restore
from checkpointing.restore.memory_restore import CompleteSnapshot
from checkpointing.restore.peer_replicas import PeerReplicas
from checkpointing.save.save_plan import SavePlan
from checkpointing.service.client.held_snapshots import HeldSnapshot, PulledSnapshot, ServiceMemory
from checkpointing.service.snapshots import Generation
from checkpointing.store.catalog import Catalog, read_catalog, suspected
from checkpointing.store.write.manifest_commit import having_parts

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class RestoreOptions:
    """What a restore may use.

    Attributes:
        await_unseen: as of `Checkpointer.restore`.
        avoids_suspects: use a checkpoint with a difference mark only if there is no other.
        prefers_certified: use a checkpoint that is not certified only if there is no other.
        is_fresh: as of `Checkpointer.restore`.
    """

    await_unseen: bool = True
    avoids_suspects: bool = True
    prefers_certified: bool = False
    is_fresh: bool = False


@dataclass(frozen=True)
class StoredSteps:
    """What the store has, as far as the choice of a snapshot depends on it.

    Attributes:
        restorable: the newest step that can be restored; -1 if there is none.
        newest: the newest step of all checkpoints, damaged ones included; -1 if there is none.
        avoided: ids of checkpoints that must not be used.
    """

    restorable: int
    newest: int
    avoided: frozenset[str]


def stored_steps(
    catalog: Catalog, rejected: Mapping[str, str], *, avoids_suspects: bool
) -> StoredSteps:
    """Returns what the store has; a pure function.

    Args:
        rejected: ids of checkpoints that must not be used, and why.
    """
    suspects = suspected(catalog.entries) if avoids_suspects else {}
    avoided = frozenset({*rejected, *(stored.save.id for stored in suspects)})
    good = (entry.stored.save for entry in catalog.entries if entry.stored.save.id not in avoided)
    restorable = max((save.step for save in good), default=-1)
    damaged = max((save.step for save in catalog.problems), default=-1)
    return StoredSteps(restorable, max(restorable, damaged), avoided)


class SnapshotChooser:
    """Chooses a snapshot for one attempt to resume. `choose` is a collective."""

    def __init__(
        self,
        connections: Connections,
        replication: PeerReplicas,
        options: RestoreOptions,
        rejected: Mapping[str, str],
    ) -> None:
        self._run, self._ranks = connections.run, connections.ranks
        self._store, self._client = connections.store, connections.client
        self._replication, self._options, self._rejected = replication, options, rejected
        self.catalog: Catalog | None = None
        """On rank 0: what the store had when snapshots were compared with it; None if there were no
        snapshots."""
        self.pulled: PulledSnapshot | None = None
        """This rank's part of the chosen snapshot, if it was fetched from another node."""

    def choose(self, left: ServiceMemory, planned: SavePlan) -> CompleteSnapshot | None:
        """Returns the newest snapshot if the store has nothing newer and each rank has its part of
        it, in the form of its present state, on its own node or another one. A snapshot that is
        newer than the store's checkpoints but cannot be used so is made durable here, if possible.
        """
        gathered = self._ranks.all_gather(left.found, self._ranks.control)
        if not any(gathered):
            return None
        stored = self._ranks.from_rank0(self._stored_steps)
        found = [
            one
            for those in gathered
            for one in those
            if self.save_id(one.step, one.generation).id not in stored.avoided
        ]
        # a user who removes the last checkpoints of a run wants to return to an older one
        found = [one for one in found if not (one.state == "durable" and one.step > stored.newest)]
        whole, newest = memory_restore.newest_complete(found), memory_restore.newest_part(found)
        if newest is not None and newest != whole and newest.step > stored.restorable:
            may_be = self._may_be_whole(newest, found)
            if may_be and self._await_durable(newest, memory_restore.UNSEEN_S):
                return None
        if whole is None or whole.step < stored.restorable:
            return None
        if self._differs(left, whole) or not self._may_be_preferred(left, whole):
            self._await_durable(whole, memory_restore.STUCK_S)
            return None
        if self._have_parts(left, gathered, whole, planned):
            return whole
        if whole.step > stored.restorable:
            self._await_durable(whole, memory_restore.STUCK_S)
        return None

    def own_part(self, left: ServiceMemory, whole: CompleteSnapshot) -> PulledSnapshot:
        """Returns this rank's part of the chosen snapshot, with the memory in which it lies."""
        if self.pulled is not None:
            return self.pulled
        mine, here = memory_restore.own(left.found, whole, self._ranks.rank), self._client.left
        assert mine is not None
        assert here is not None
        return PulledSnapshot(here, mine, left.own[whole.generation, whole.step])

    def save_id(self, step: int, generation: Generation) -> SaveId:
        """Returns the id that a snapshot would have in the store."""
        return SaveId(self._run, step, generation.id)

    def release(self) -> None:
        """Release the memory of a part that was fetched from another node."""
        pulled, self.pulled = self.pulled, None
        if pulled is not None:
            pulled.left.arena.close()

    def _stored_steps(self) -> StoredSteps:
        self.catalog = read_catalog(self._store, self._run)
        return stored_steps(
            self.catalog, self._rejected, avoids_suspects=self._options.avoids_suspects
        )

    def _differs(self, left: ServiceMemory, whole: CompleteSnapshot) -> bool:
        """Whether ranks had different replicas of something in it. If so, the snapshot is made
        durable and marked first, and the checkpoint to resume from is chosen in the store."""
        metadata = left.own.get((whole.generation, whole.step))
        digests = {} if metadata is None else dict(metadata.digests)
        digests_by_rank = self._ranks.all_gather(digests, self._ranks.control)
        seen: dict[str, str] = {}
        return self._options.avoids_suspects and any(
            seen.setdefault(group, digest) != digest
            for one in digests_by_rank
            for group, digest in one.items()
        )

    def _may_be_preferred(self, left: ServiceMemory, whole: CompleteSnapshot) -> bool:
        """Whether it is certified, if that is asked for. If not, it is made durable, and the
        checkpoint to resume from is chosen in the store."""
        if not self._options.prefers_certified:
            return True
        metadata = left.own.get((whole.generation, whole.step))
        mine = None if metadata is None else bool(metadata.certified)
        found = self._ranks.all_gather(mine, self._ranks.control)
        return True in found and False not in found

    def _may_be_whole(self, newest: CompleteSnapshot, found: Sequence[HeldSnapshot]) -> bool:
        """Whether the parts that no node here has may be on other nodes, or are already in the
        store."""
        missing = set(range(newest.generation.world_size)) - memory_restore.holders(found, newest)
        return self._ranks.from_rank0(
            lambda: self._options.await_unseen or self._are_stored(newest, missing)
        )

    def _are_stored(self, whole: CompleteSnapshot, ranks: set[int]) -> bool:
        """Whether these ranks' parts are in the store."""
        save = self.save_id(whole.step, whole.generation)
        return having_parts(self._store, save, ranks) == ranks

    def _await_durable(self, whole: CompleteSnapshot, timeout_s: float) -> bool:
        self._replication.save_for_lost_nodes(whole)
        all_ranks = set(range(whole.generation.world_size))
        is_stored = partial(self._are_stored, whole, all_ranks)
        return memory_restore.await_durable(self._ranks, self._client, whole, timeout_s, is_stored)

    def _have_parts(
        self,
        left: ServiceMemory,
        gathered: list[tuple[HeldSnapshot, ...]],
        whole: CompleteSnapshot,
        planned: SavePlan,
    ) -> bool:
        """Whether all ranks have their parts, after those on other nodes were fetched."""
        fits, node = self._fits(left, whole, planned), None
        if not fits:
            node = self._replication.source(gathered, whole, planned.layout.digest)
        if not all(self._ranks.all_gather(fits or node is not None, self._ranks.control)):
            return False
        problem = None
        try:
            if node is not None:
                self.pulled = self._replication.pull(whole, node)
        except ServiceError as error:
            problem = f"rank {self._ranks.rank}: {error}"
        problems = [one for one in self._ranks.all_gather(problem, self._ranks.control) if one]
        if problems:
            logger.warning("step %d is not restored from memory: %s", whole.step, problems[0])
            self.release()
        return not problems

    def _fits(self, left: ServiceMemory, whole: CompleteSnapshot, planned: SavePlan) -> bool:
        mine = memory_restore.own(left.found, whole, self._ranks.rank)
        return (
            mine is not None
            and mine.digest == planned.layout.digest
            and whole.generation.world_size == self._ranks.world_size
            and self._client.left is not None
            and not self._client.left.arena.is_closed  # as it is if the state needed a larger one
        )
