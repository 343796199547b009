"""Restores a run: tries snapshots and checkpoints until the user's check accepts one on every rank,
and begins the service generation that saves from there on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from checkpointing.connections import Connections, CurrentGeneration
from checkpointing.errors import CheckpointError, FormatError, StructureError
from checkpointing.events import CheckpointSkipped
from checkpointing.ranks.rank_group import RankGroup, first_reasons
from checkpointing.restore.peer_replicas import PeerReplicas
from checkpointing.restore.resume_source import RestoreResult, Resumer
from checkpointing.restore.snapshot_choice import RestoreOptions
from checkpointing.restore.snapshot_mapping import SnapshotMapping
from checkpointing.save.save_pipeline import SavePipeline
from checkpointing.save.save_schedule import SaveSchedule
from checkpointing.save.shipper import SaveRequest
from checkpointing.state.collector_pause import collector_paused

logger = logging.getLogger("checkpointing")

Check: TypeAlias = Callable[[], str | None]
"""Returns why the restored state must not be used, or None if it may be."""


class RestorePipeline:
    """Restores the states of one rank. `restore` is a collective."""

    def __init__(
        self,
        connections: Connections,
        saves: SavePipeline,
        schedule: SaveSchedule,
        generation: CurrentGeneration,
        replication: PeerReplicas,
    ) -> None:
        self._connections, self._ranks = connections, connections.ranks
        self._client, self._events = connections.client, connections.events
        self._saves, self._schedule = saves, schedule
        self._generation, self._replication = generation, replication
        self._mapping = SnapshotMapping(self._client.left)

    def restore(
        self,
        state: dict[str, Any],
        check: Check | None,
        options: RestoreOptions,
        avoid: Mapping[str, str] | None = None,
    ) -> RestoreResult | None:
        """Restore `state` from the newest snapshot or checkpoint that `check` accepts on every
        rank; see `Checkpointer.restore`. Returns None if there is none.

        Args:
            avoid: ids of checkpoints that are not used, and why; those of rank 0 count.

        Raises:
            CheckpointError: every checkpoint was rejected; `state` holds one of them.
        """
        with self._ranks.expect_all("restoring"):
            rejected: dict[str, str] = self._ranks.from_rank0(lambda: dict(avoid or {}))
        avoided = frozenset(rejected)
        while True:
            resumer = Resumer(
                self._connections, self._saves, self._replication, options, rejected, self._mapping
            )
            resumed = self._resume(resumer, state)
            if resumed is None and rejected:
                reasons = "; ".join(f"{id_}: {why}" for id_, why in rejected.items())
                raise CheckpointError(f"no source is left to resume from: {reasons}")
            reason = None if resumed is None or check is None else _rejections(self._ranks, check)
            if resumed is None or reason is None:
                self._begin_generation(resumer, resumed, state, avoided)
                return resumed
            logger.warning("checkpoint %s is skipped: %s", resumed.id, reason)
            self._events.emit(
                CheckpointSkipped(step=resumed.step, id=resumed.id, reason=reason, is_rejected=True)
            )
            rejected[resumed.id] = reason

    def _resume(self, resumer: Resumer, state: dict[str, Any]) -> RestoreResult | None:
        try:
            return resumer.resume(state)
        except (StructureError, FormatError):  # of the same kind on all ranks
            # If the restore got as far as the takeover, the saves before it are committed or
            # abandoned.
            if self._ranks.from_rank0(lambda: resumer.owner is not None):
                self._renew_generation(resumer.owner)
                self._saves.forget_saves()
            raise

    def _begin_generation(
        self,
        resumer: Resumer,
        resumed: RestoreResult | None,
        state: Mapping[str, Any],
        avoided: frozenset[str],
    ) -> None:
        """Begin a new service generation, because later steps may be saved again after a
        restore."""
        self._renew_generation(resumer.owner)
        self._saves.forget_saves()
        self._schedule.note_interruptions(self._ranks.from_rank0(lambda: resumer.interruptions))
        with collector_paused():
            self._saves.preparer.ahead(state, resumer.restored)
        if resumed is not None:
            self._schedule.note_saved(resumed.step)
            if resumed.found is not None:
                self._save_restored(resumer, resumed, state)
        skipped = avoided | (resumer.newer_than(resumed.step) if resumed else frozenset())
        self._ranks.all_or_none(
            lambda: self._client.resume(resumer.damaged - avoided, resumer.distrusted, skipped)
        )
        self._saves.note_restored()
        self._saves.preparer.begin_allocation()  # last, as it takes the processor from what waits

    def _renew_generation(self, owner: int | None) -> None:
        """Save under this takeover from now on.

        Args:
            owner: the takeover's number, on rank 0; None: there was none.
        """
        self._generation.renew(self._client, owner)
        self._replication.connect(self._generation.value)

    def _save_restored(
        self, resumer: Resumer, resumed: RestoreResult, state: Mapping[str, Any]
    ) -> None:
        """Save a state that was restored from memory alone as one of this generation's, before its
        old slot is lost."""
        if not self._ranks.from_rank0(lambda: resumer.has_checkpoint(resumed.step)):
            self._ranks.all_or_none(lambda: self._save_restored_here(resumed, state))

    def _save_restored_here(self, resumed: RestoreResult, state: Mapping[str, Any]) -> None:
        found, metadata = resumed.found, resumed.metadata
        planned = self._saves.preparer.planned
        assert found is not None
        assert metadata is not None
        assert planned is not None
        if resumed.has_moved or not self._saves.shipper.reuses_left_arena:
            self._saves.save(resumed.step, state, metadata.metrics, None, metadata.certified)
            self._saves.shipper.settle()
            return
        request = SaveRequest(
            resumed.step,
            metadata.values,
            metadata.metrics,
            time.time(),
            time.monotonic(),
            None,
            certified=metadata.certified,
        )
        self._saves.save_restored(request, found.slot, planned, metadata.fingerprints)


def _rejections(ranks: RankGroup, check: Check) -> str | None:
    mine = ranks.all_or_none(check)
    reasons = enumerate(ranks.all_gather(mine, ranks.control))
    return first_reasons([f"rank {rank}: {why}" for rank, why in reasons if why]) or None
