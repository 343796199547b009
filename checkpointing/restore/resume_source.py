"""Resumes a run from the memory of its nodes or from the store, whichever has the newer state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from checkpointing.connections import Connections
from checkpointing.errors import StructureError
from checkpointing.format.values.json_values import Json
from checkpointing.restore import memory_restore
from checkpointing.restore.memory_restore import CompleteSnapshot
from checkpointing.restore.peer_replicas import PeerReplicas
from checkpointing.restore.read_broadcast import broadcast_reads
from checkpointing.restore.snapshot_choice import RestoreOptions, SnapshotChooser
from checkpointing.restore.snapshot_mapping import SnapshotMapping
from checkpointing.restore.store_restore import Restorer
from checkpointing.save.save_pipeline import SavePipeline
from checkpointing.save.save_plan import SavePlan
from checkpointing.save.save_schedule import Interruptions, interruptions
from checkpointing.service.client.held_snapshots import (
    HeldSnapshot,
    ServiceMemory,
    SnapshotMetadata,
)
from checkpointing.staging.staging_buffers import StagingBuffers
from checkpointing.state.collector_pause import collector_paused
from checkpointing.state.item_adapters import optimizers
from checkpointing.state.load_target import LoadTarget
from checkpointing.state.structure_comparison import Inventory, difference, json_digest
from checkpointing.state.tree import Leaves


@dataclass(frozen=True)
class RestoreResult:
    """Where the state was restored from.

    Attributes:
        bytes: bytes of this rank's tensors.
        found: this rank's part, if it was in memory.
        metadata: what was staged beside the tensors of that part.
        has_moved: the part came from another node, and is in no slot of this one.
        certified: how it was certified, as of `ManifestHeader`; "": it was not.
    """

    id: str
    step: int
    tier: Literal["memory", "store"]
    bytes: int
    found: HeldSnapshot | None = None
    metadata: SnapshotMetadata | None = None
    has_moved: bool = False
    certified: str = ""


class Resumer:
    """One attempt to resume a run. `resume` is a collective."""

    def __init__(
        self,
        connections: Connections,
        saves: SavePipeline,
        replication: PeerReplicas,
        options: RestoreOptions,
        rejected: Mapping[str, str],
        mapping: SnapshotMapping,
    ) -> None:
        """
        Args:
            rejected: ids of checkpoints that must not be used, and why.
            mapping: stopped once what it maps is read, or is not needed.
        """
        self._mapping, self._is_fresh = mapping, options.is_fresh
        self._run, self._ranks = connections.run, connections.ranks
        self._client = connections.client
        self._planner, self._preparer = saves.planner, saves.preparer
        self._staging = StagingBuffers()
        self._chooser = SnapshotChooser(connections, replication, options, rejected)
        self._restorer = Restorer(
            connections,
            self._staging,
            dict(rejected),
            avoids_suspects=options.avoids_suspects,
            prefers_certified=options.prefers_certified,
            is_fresh=options.is_fresh,
        )
        self.distrusted: frozenset[bytes] = frozenset()  # packs in which damage was found
        self.restored: tuple[SavePlan, Leaves] | None = None
        """The plan and the leaves of the state after it was restored from memory; None: the state
        may have others."""

    @property
    def owner(self) -> int | None:
        """The number of the takeover; None on ranks other than 0."""
        return self._restorer.owner

    @property
    def damaged(self) -> frozenset[str]:
        """Ids of checkpoints that cannot be loaded, or that were skipped for their difference mark;
        known to rank 0."""
        return frozenset({*self._restorer.skipped, *self._restorer.skipped_suspects})

    @property
    def interruptions(self) -> Interruptions:
        """How often the run was interrupted before; known to rank 0."""
        entries = self._restorer.catalog.entries
        return interruptions((e.stored.save.session, e.document.header.created) for e in entries)

    def newer_than(self, step: int) -> frozenset[str]:
        """Return the ids of the readable checkpoints of later steps, from which the run does not
        continue; known to rank 0."""
        entries = (entry.stored.save for entry in self._restorer.catalog.entries)
        return frozenset(save.id for save in entries if save.step > step)

    def has_checkpoint(self, step: int) -> bool:
        """Returns whether the store had a readable checkpoint of this step after the takeover;
        known to rank 0."""
        return any(entry.stored.save.step == step for entry in self._restorer.catalog.entries)

    def resume(self, state: dict[str, Any]) -> RestoreResult | None:
        """Load the newest snapshot or checkpoint; returns None if there is none. Raises as
        `Checkpointer.restore`."""
        asked = self._client.begin_snapshots()  # answered beside the plan
        with collector_paused():
            with self._ranks.expect_all("restoring"):
                target = self._ranks.all_or_none(lambda: LoadTarget(state))
            self._ranks.all_or_none(target.expect)
            planned = self._planner.plan(target.leaves, optimizers(state))
        try:
            left = self._ranks.all_or_none(asked)
            whole = self._chooser.choose(left, planned)
            with collector_paused():
                if whole is not None:
                    return self._take_from_memory(state, left, whole, planned, target)
                return self._take_from_store(state, planned, target)
        finally:
            self._chooser.release()

    def _take_from_memory(
        self,
        state: Mapping[str, Any],
        left: ServiceMemory,
        whole: CompleteSnapshot,
        planned: SavePlan,
        target: LoadTarget,
    ) -> RestoreResult:
        # a restore that is refused must be so before a save that is under way is abandoned
        inventory = self._prepare_target(left, whole, target)
        tensors, groups = target.leaves.tensors, planned.plan.save_groups(self._ranks.rank)
        is_shared = any(len(group.ranks) > 1 for group in groups)
        into = self._staging.buffers(tensors) if is_shared else tensors
        # nothing that is needed may change before the takeover has succeeded
        is_early = is_shared or self._is_fresh
        taken_over = self._restorer.begin_take_over(known=self._chooser.catalog)
        try:
            self._preparer.begin(planned, target.leaves, optimizers(state))
            copy = self._prepare_copy(left, whole, planned, into)
            if is_early:
                copy()
        finally:
            taken_over()
        if not is_early:
            copy()
        if is_shared:
            broadcast_reads(self._ranks, groups, into)
        self._load_into_state(target, into if is_shared else {}, inventory, lambda: None)
        if target.is_live:
            self.restored = planned, target.leaves
        return self._result(left, whole, planned)

    def _take_from_store(
        self, state: dict[str, Any], planned: SavePlan, target: LoadTarget
    ) -> RestoreResult | None:
        self._mapping.stop()
        if not self._restorer.take_over():
            return None
        memory = self._preparer.lend(planned, target.leaves, optimizers(state))
        if memory is not None:
            self._staging.lend(memory)
        return self._from_store(target)

    def _prepare_copy(
        self,
        left: ServiceMemory,
        whole: CompleteSnapshot,
        planned: SavePlan,
        into: Mapping[str, Tensor],
    ) -> Callable[[], None]:
        """Returns the function that copies this rank's part of the snapshot."""
        part = self._chooser.own_part(left, whole)
        start = part.found.slot * part.left.slot_bytes
        copy = memory_restore.prepare_load(part.left.arena, start, planned, into)

        def stop_and_copy() -> None:
            self._mapping.stop()
            copy()

        return stop_and_copy

    def _result(
        self, left: ServiceMemory, whole: CompleteSnapshot, planned: SavePlan
    ) -> RestoreResult:
        part = self._chooser.own_part(left, whole)
        return RestoreResult(
            self._chooser.save_id(whole.step, whole.generation).id,
            whole.step,
            "memory",
            planned.layout.bytes,
            part.found,
            part.metadata,
            has_moved=self._chooser.pulled is not None,
            certified=part.metadata.certified,
        )

    def _prepare_target(
        self, left: ServiceMemory, whole: CompleteSnapshot, target: LoadTarget
    ) -> Inventory:
        """Prepare the state to load a snapshot that has its tensors and the names of its values.
        The content of the values, such as the class of an optimizer, may still make it fail."""
        metadata, values = self._chooser.own_part(left, whole).metadata, dict[str, Json]()
        saved = metadata.values
        for theirs in self._ranks.gather_distinct(
            saved, lambda: json_digest(saved), self._ranks.control
        ):
            values |= theirs
        inventory = Inventory.made(target.wants().tensors, values)
        self._ranks.all_or_none(lambda: target.form(inventory))
        mine = target.wants()
        wants = self._ranks.gather_distinct(mine, mine.digest, self._ranks.control)
        tensors = {name: spec for one in wants for name, spec in one.tensors.items()}
        if text := difference(wants, replace(inventory, tensors=tensors)):
            raise StructureError(
                f"the state does not match the snapshot of step {whole.step} of run {self._run!r} "
                f"in the memory of its nodes:{text}"
            )
        return inventory

    def _load_into_state(
        self,
        target: LoadTarget,
        names: Iterable[str],
        inventory: Inventory,
        deliver: Callable[[], None],
    ) -> None:
        """Load what was read into the state, on all ranks.

        Args:
            names: names of the tensors that are copied from the buffers.
            deliver: fills the other live tensors that have no content yet.
        """

        elsewhere, tensors = target.elsewhere(), target.leaves.tensors

        def choose_here() -> None:
            self._staging.copy_back({name: tensors[name] for name in names if name in elsewhere})
            target.choose(inventory)

        def take_here() -> None:
            deliver()
            live = (name for name in names if name not in elsewhere)
            self._staging.copy_back({name: tensors[name] for name in live})
            target.finish(inventory)

        # calls functions of the user's program, which may fail
        self._ranks.all_or_none(choose_here)
        self._ranks.all_or_none(take_here)
        self._staging.release()  # the next save may use its memory

    def _from_store(self, target: LoadTarget) -> RestoreResult:
        restored = self._restorer.read_newest(target)
        self._load_into_state(target, restored.buffers, restored.inventory, restored.deliver)
        self.distrusted = restored.distrusted
        header = restored.checkpoint.header
        return RestoreResult(
            restored.checkpoint.id,
            header.save.step,
            "store",
            restored.size,
            certified=header.certified,
        )
