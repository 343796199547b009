"""Decides where to resume a run from: the memory of its nodes or the store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from checkpointing.errors import ServiceError, StructureError
from checkpointing.events import Events
from checkpointing.format.object_keys import SaveId
from checkpointing.format.values.json_values import Json
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore import memory_restore
from checkpointing.restore.interruptions import Interruptions, interruptions
from checkpointing.restore.memory_restore import CompleteSnapshot
from checkpointing.restore.peer_replicas import PeerReplicas
from checkpointing.restore.read_broadcast import broadcast_reads
from checkpointing.restore.store_restore import Restorer
from checkpointing.save.save_plan import Planner, SavePlan
from checkpointing.save.save_preparation import Preparer
from checkpointing.service.client.held_snapshots import (
    HeldSnapshot,
    PulledSnapshot,
    ServiceMemory,
    SnapshotMetadata,
)
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.snapshots import Generation
from checkpointing.staging.stager import StagingBuffers
from checkpointing.state.item_adapters import LoadTarget, optimizers
from checkpointing.state.structure_comparison import Inventory, difference
from checkpointing.store.catalog import committed, suspected
from checkpointing.store.store import Store
from checkpointing.store.write.manifest_commit import having_parts

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class RestoreResult:
    """Where the state was restored from."""

    id: str
    step: int
    tier: Literal["memory", "store"]
    bytes: int  # bytes of this rank's tensors
    found: HeldSnapshot | None = None  # this rank's part, if it was in memory
    said: SnapshotMetadata | None = None  # the metadata that came with it
    has_moved: bool = False  # it came from another node, and is in no slot of this one


class Resumer:
    """One attempt to resume a run. `resume` is a collective."""

    def __init__(
        self,
        store: Store,
        run: str,
        ranks: RankGroup,
        client: ServiceClient,
        planner: Planner,
        preparer: Preparer,
        events: Events,
        replication: PeerReplicas | None = None,
        *,
        await_unseen: bool = True,
        avoids_suspects: bool = True,
        rejected: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            avoids_suspects: use a checkpoint with a difference mark only if there is no other.
            rejected: ids of checkpoints that must not be used, and why.
        """
        self._await_unseen, self._avoids_suspects = await_unseen, avoids_suspects
        self._rejected = dict(rejected or {})
        self._replication = replication
        self._pulled: PulledSnapshot | None = None  # this rank's part, if it was on another node
        self._store, self._run, self._ranks = store, run, ranks
        self._client, self._planner, self._preparer = client, planner, preparer
        self._staging = StagingBuffers()
        self._restorer = Restorer(
            store,
            run,
            ranks,
            self._staging,
            events,
            dict(self._rejected),
            avoids_suspects=avoids_suspects,
        )
        self.interruptions = Interruptions()
        self.distrusted: frozenset[bytes] = frozenset()  # packs in which damage was found

    @property
    def owner(self) -> int | None:
        """The number of the takeover; None on ranks other than 0."""
        return self._restorer.owner

    @property
    def damaged(self) -> frozenset[str]:
        """Ids of checkpoints that cannot be loaded, or that were skipped for their difference mark;
        known to rank 0."""
        return frozenset({*self._restorer.skipped, *self._restorer.skipped_suspects})

    def resume(self, state: dict[str, Any]) -> RestoreResult | None:
        """Load the newest snapshot or checkpoint; returns None if there is none. Raises as
        `Checkpointer.restore`."""
        target = self._ranks.all_or_none(lambda: LoadTarget(state))
        self._ranks.all_or_none(target.expect)
        try:
            planned = self._planner.plan(target.leaves, optimizers(state))
            left = self._ranks.all_or_none(self._client.snapshots)
            whole = self._usable_snapshot(left, planned)
            # a restore that is refused must be so before a save that is under way is abandoned
            inventory = self._prepare_target(left, whole, target) if whole is not None else None
            has_checkpoints = self._restorer.take_over()
            if whole is not None and inventory is not None:
                return self._from_memory(left, whole, planned, target, inventory)
            if not has_checkpoints:
                return None
            memory = self._preparer.lend(target.leaves, optimizers(state))
            if memory is not None:
                self._staging.lend(memory)
            return self._from_store(target)
        finally:
            self._release_pulled()

    def _usable_snapshot(self, left: ServiceMemory, planned: SavePlan) -> CompleteSnapshot | None:
        """Returns the newest snapshot if the store has nothing newer and each rank has its part of
        it, in the form of its present state, on its own node or another one. A snapshot that is
        newer than the store's checkpoints but cannot be used so is made durable here, if possible.
        """
        gathered = self._ranks.all_gather(left.found, self._ranks.control)
        durable, there, avoided, self.interruptions = self._ranks.from_rank0(self._history)
        found = [
            one
            for those in gathered
            for one in those
            if self._save(one.step, one.generation).id not in avoided
        ]
        # a user who removes the last checkpoints of a run wants to return to an older one
        found = [one for one in found if not (one.state == "durable" and one.step > there)]
        whole, newest = memory_restore.newest_complete(found), memory_restore.newest_part(found)
        if newest is not None and newest != whole and newest.step > durable:
            may_be = self._may_be_whole(newest, found)
            if may_be and self._await(newest, memory_restore.UNSEEN_S):
                return None
        if whole is None or whole.step < durable:
            return None
        if self._differs(left, whole):
            self._await(whole, memory_restore.STUCK_S)
            return None
        if self._have_parts(left, gathered, whole, planned):
            return whole
        if whole.step > durable:
            self._await(whole, memory_restore.STUCK_S)
        return None

    def _differs(self, left: ServiceMemory, whole: CompleteSnapshot) -> bool:
        """Whether ranks had different replicas of something in it. If so, the snapshot is made
        durable and marked first, and the checkpoint to resume from is chosen in the store."""
        said = left.own.get((whole.generation, whole.step))
        digests = {} if said is None else dict(said.digests)
        digests_by_rank = self._ranks.all_gather(digests, self._ranks.control)
        seen: dict[str, str] = {}
        return self._avoids_suspects and any(
            seen.setdefault(group, digest) != digest
            for one in digests_by_rank
            for group, digest in one.items()
        )

    def _may_be_whole(self, newest: CompleteSnapshot, found: Sequence[HeldSnapshot]) -> bool:
        """Whether the parts that no node here has may be on other nodes, or are already in the
        store."""
        missing = set(range(newest.generation.world_size)) - memory_restore.holders(found, newest)
        return self._ranks.from_rank0(
            lambda: self._await_unseen or self._are_stored(newest, missing)
        )

    def _are_stored(self, whole: CompleteSnapshot, ranks: set[int]) -> bool:
        """Whether these ranks' parts are in the store."""
        save = self._save(whole.step, whole.generation)
        return having_parts(self._store, save, ranks) == ranks

    def _await(self, whole: CompleteSnapshot, patience_s: float) -> bool:
        if self._replication is not None:
            self._replication.adopt(whole)
        all_ranks = set(range(whole.generation.world_size))
        is_stored = partial(self._are_stored, whole, all_ranks)
        return memory_restore.await_durable(self._ranks, self._client, whole, patience_s, is_stored)

    def _have_parts(
        self,
        left: ServiceMemory,
        gathered: list[tuple[HeldSnapshot, ...]],
        whole: CompleteSnapshot,
        planned: SavePlan,
    ) -> bool:
        """Whether all ranks have their parts, after those on other nodes were fetched."""
        fits, node = self._fits(left, whole, planned), None
        if not fits and self._replication is not None:
            node = self._replication.source(gathered, whole, planned.layout.digest)
        if not all(self._ranks.all_gather(fits or node is not None, self._ranks.control)):
            return False
        problem = None
        try:
            if node is not None and self._replication is not None:
                self._pulled = self._replication.pull(whole, node)
        except ServiceError as error:
            problem = f"rank {self._ranks.rank}: {error}"
        problems = [one for one in self._ranks.all_gather(problem, self._ranks.control) if one]
        if problems:
            logger.warning("step %d is not restored from memory: %s", whole.step, problems[0])
            self._release_pulled()
        return not problems

    def _release_pulled(self) -> None:
        pulled, self._pulled = self._pulled, None
        if pulled is not None:
            pulled.left.arena.close()

    def _fits(self, left: ServiceMemory, whole: CompleteSnapshot, planned: SavePlan) -> bool:
        mine = memory_restore.own(left.found, whole, self._ranks.rank)
        return (
            mine is not None
            and mine.digest == planned.layout.digest
            and whole.generation.world_size == self._ranks.world_size
            and self._client.left is not None
            and not self._client.left.arena.is_closed  # as it is if the state needed a larger one
        )

    def _history(self) -> tuple[int, int, set[str], Interruptions]:
        """Returns the newest step in the store that can be restored, -1 if there is none; the ids
        of checkpoints that must not be used; and how often the run was interrupted."""
        found, problems = committed(self._store, self._run)
        saves = [(one.stored.save.session, one.document.header.created) for one in found]
        suspects = suspected(found) if self._avoids_suspects else {}
        avoided = {*self._rejected, *(stored.save.id for stored in suspects)}
        good = (one.stored.save for one in found if one.stored.save.id not in avoided)
        readable = max((save.step for save in good), default=-1)
        there = max((save.step for save in problems), default=-1)
        return readable, max(readable, there), avoided, interruptions(saves)

    def _from_memory(
        self,
        left: ServiceMemory,
        whole: CompleteSnapshot,
        planned: SavePlan,
        target: LoadTarget,
        inventory: Inventory,
    ) -> RestoreResult:
        pulled = self._pulled or self._own(left, whole)
        mine, arena = pulled.found, pulled.left
        tensors = target.leaves.tensors
        groups = planned.plan.save_groups(self._ranks.rank)
        is_shared = any(len(group.ranks) > 1 for group in groups)
        into = self._staging.buffers(tensors) if is_shared else tensors
        memory_restore.load(arena.arena, mine.slot * arena.slot_bytes, planned, into)
        if is_shared:
            broadcast_reads(self._ranks, groups, into)
        self._load_into_state(target, tensors if is_shared else {}, inventory)
        has_moved = self._pulled is not None
        id_ = self._save(whole.step, whole.generation).id
        return RestoreResult(
            id_, whole.step, "memory", planned.layout.bytes, mine, pulled.said, has_moved
        )

    def _prepare_target(
        self, left: ServiceMemory, whole: CompleteSnapshot, target: LoadTarget
    ) -> Inventory:
        """Prepare the state to load a snapshot that has its tensors and the names of its values.
        The content of the values, such as the class of an optimizer, may still make it fail."""
        said, values = (self._pulled or self._own(left, whole)).said, dict[str, Json]()
        for theirs in self._ranks.all_gather(said.values, self._ranks.control):
            values |= theirs
        inventory = Inventory.made(target.wants().tensors, values)
        self._ranks.all_or_none(lambda: target.form(inventory))
        wants = self._ranks.all_gather(target.wants(), self._ranks.control)
        tensors = {name: spec for one in wants for name, spec in one.tensors.items()}
        if text := difference(wants, replace(inventory, tensors=tensors)):
            raise StructureError(
                f"the state does not match the snapshot of step {whole.step} of run {self._run!r} "
                f"in the memory of its nodes:{text}"
            )
        return inventory

    def _own(self, left: ServiceMemory, whole: CompleteSnapshot) -> PulledSnapshot:
        mine, here = memory_restore.own(left.found, whole, self._ranks.rank), self._client.left
        assert mine is not None
        assert here is not None
        return PulledSnapshot(here, mine, left.own[whole.generation, whole.step])

    def _load_into_state(
        self, target: LoadTarget, names: Iterable[str], inventory: Inventory
    ) -> None:
        """Load what was read into the state, on all ranks; the tensors with these names are copied
        from the buffers."""

        elsewhere, tensors = target.elsewhere(), target.leaves.tensors

        def choose_here() -> None:
            self._staging.copy_back({name: tensors[name] for name in names if name in elsewhere})
            target.choose(inventory)

        def take_here() -> None:
            live = (name for name in names if name not in elsewhere)
            self._staging.copy_back({name: tensors[name] for name in live})
            target.finish(inventory)

        # calls functions of the user's program, which may fail
        self._ranks.all_or_none(choose_here)
        self._ranks.all_or_none(take_here)
        self._staging.release()  # the next save may use its memory

    def _from_store(self, target: LoadTarget) -> RestoreResult:
        restored = self._restorer.read_newest(target)
        self._load_into_state(target, target.leaves.tensors, restored.inventory)
        self.distrusted = restored.distrusted
        step = restored.checkpoint.header.save.step
        return RestoreResult(restored.checkpoint.id, step, "store", restored.size)

    def _save(self, step: int, generation: Generation) -> SaveId:
        """Returns the id that a snapshot would have in the store."""
        return SaveId(self._run, step, generation.id)
