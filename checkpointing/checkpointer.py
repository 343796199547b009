"""The `Checkpointer`, the class through which a trainer saves and restores its state."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from checkpointing.collective_open import join_service, new_generation, open_store
from checkpointing.errors import CheckpointError, FormatError, SaveError, StructureError
from checkpointing.events import Events, OnEvent
from checkpointing.format.object_keys import check_run, check_step
from checkpointing.ranks.lagged_agreement import LaggedVote
from checkpointing.ranks.node_ranks import ranks_on_node
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore.accepted_checkpoint import Check, newest_accepted
from checkpointing.restore.interruptions import Interruptions
from checkpointing.restore.peer_replicas import PeerReplicas, check_replica_count
from checkpointing.restore.resume_source import RestoreResult, Resumer
from checkpointing.retention import KeepPolicy
from checkpointing.save.abandoned_checkpointer import release_abandoned
from checkpointing.save.bucket_flow_control import BucketFlowControl
from checkpointing.save.commit_wait import wait_together
from checkpointing.save.process_exit import when_dropped
from checkpointing.save.replica_check import CheckReplicas, ReplicaCheck
from checkpointing.save.save_outcomes import OutcomeListener, SaveStatus
from checkpointing.save.save_plan import Planner
from checkpointing.save.save_preparation import Preparer
from checkpointing.save.shipper import SaveRequest
from checkpointing.save.staging_modes import Staging, check_mode, hear_both, shipper_for
from checkpointing.save_policy import SavePolicy, SaveSituation
from checkpointing.service.config import Budget, ServiceConfig, own_disk
from checkpointing.state.item_adapters import optimizers, to_save
from checkpointing.state.per_rank import Differing, check_differing
from checkpointing.store.catalog import committed
from checkpointing.store_url import local_folder


class Checkpointer:
    """Saves a training state without stopping training, and restores the newest whole checkpoint.

    Works in a single process or under torch.distributed, where all ranks construct it and call
    every method at the same point of their programs. `state` is a dict of name -> module,
    optimizer, object with state_dict() and load_state_dict(), tensor, or nested plain values.
    DTensors are saved by their shards and restored onto any world size; everything else is assumed
    to be the same on all ranks and is written once.

    A save copies the state into shared memory, and the node's checkpoint service makes it durable.
    The service is a separate process, which this starts if it is not running. It goes on when the
    trainer has died, and keeps the newest snapshot for the next start.

    Args:
        root: the store that all ranks can write to: a directory, s3://bucket/folder, or any URL
            that fsspec knows. It is created if it does not exist.
        run: name of the run in the store.
        every: when `due` returns True: `Steps(50)`, `Minutes(10)`, `Auto(mtbf_s=3600)`, or several
            joined by |; None: never.
        keep: which checkpoints to keep; empty keeps all.
        compress: store chunks compressed, or as the difference to an earlier save, where that saves
            space.
        depth: the largest number of earlier saves that a reader of such a difference has to read; a
            larger one stores less and reads more (`benchmarks/README.md` has measurements).
        options: options of the storage, see `checkpointing.storage.open_storage`; plain values
            only.
        on_event: called as `on_event(kind, **fields)` on rank 0, from the trainer's thread or
            another.
        slots: the number of snapshots of each rank that its node's memory holds. With 2 the last
            one stays whole while the next is copied; more bridge a slow store.
        staging: "slots"; or "buckets" where a node is short of memory: the state passes through a
            tenth of its size, and `save` blocks for as long as the service needs to read it. No
            snapshot is left in memory then to resume from.
        overlap: copy parameters and optimizer state while training goes on; the optimizers' steps
            wait for it. Do not use it where something other than the optimizers in `state` writes
            to them: a save in which such a write is detected fails.
        budget: what the service may use of its node (CPU, memory, bandwidth).
        local: the spool, a folder of the user on each node's own disk, created with mode 0700 if it
            does not exist. A snapshot with a deadline that the store would miss is copied there
            first, where the next trainers on the node find it; the copy is removed when the
            snapshot is durable. None: no such copies.
        max_unsaved: minutes without a new durable checkpoint after which `save` raises, rather than
            put ever more training at risk; None: never.
        differing: what happens with values and small tensors outside modules and optimizers that
            are not the same on all ranks and are not declared as `PerRank`. "error": `restore`, or
            the first `save` if that comes first, raises SaveError and names them; "warn": a warning
            is logged and one rank's are saved for all.
        check_replicas: when replicas (of a tensor) are compared by fingerprints, without a
            collective. "every": at every save; a number n: at the first of every n saves; False:
            never. A checkpoint whose replicas differ is committed with a difference mark: an event
            and the log name the tensors and ranks, and `restore` prefers the newest checkpoint
            without a mark.
        may_differ: `fnmatch` patterns for the names of tensors and values that may differ between
            ranks, which are not compared.
        replicas: 1: the next node also keeps the two newest snapshots of each rank in its memory,
            so that the loss of one node loses none of them; 0: no replicas.

    Raises:
        StoreError: the store cannot be used: its URL is unsupported, or it is unreachable or not
            writable.
        ServiceError: the node's service cannot be started.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        run: str,
        every: SavePolicy | None = None,
        keep: Sequence[KeepPolicy] = (),
        compress: bool = True,
        depth: int = 1,
        options: Mapping[str, Any] | None = None,
        on_event: OnEvent | None = None,
        slots: int = 2,
        staging: Staging = "slots",
        overlap: bool = True,
        budget: Budget | None = None,
        local: str | os.PathLike[str] | None = None,
        max_unsaved: float | None = None,
        replicas: int = 0,
        differing: Differing = "error",
        check_replicas: CheckReplicas = "every",
        may_differ: Sequence[str] = (),
    ) -> None:
        self.stall_s = 0.0  # seconds the trainer waited in the last save()
        self._run, self._every, self._max_unsaved = check_run(run), every, max_unsaved
        if slots < 1:
            raise ValueError(f"slots is a number of snapshots, at least 1, got {slots!r}")
        check_mode(staging)
        check_replica_count(replicas, staging)
        check_differing(differing)
        self._check = ReplicaCheck.of(check_replicas, may_differ, with_values=differing == "error")
        config = ServiceConfig(
            url=str(local_folder(root) or root),
            run=run,
            options=dict(options or {}),
            keep=tuple(keep),
            compress=compress,
            depth=depth,
            budget=budget or Budget(),
            local=own_disk(local),
        )
        with ExitStack() as undo:
            self._ranks = RankGroup()
            undo.callback(self._ranks.close)
            self._events = Events(on_event, self._ranks.rank)
            self._store = open_store(self._ranks, root, options)
            undo.callback(self._store.close)
            self._outcomes, flow = (
                OutcomeListener(self._events, self._store.url),
                BucketFlowControl(self._ranks.rank),
            )
            here = ranks_on_node(self._ranks)
            self._generation = new_generation(self._ranks)
            hear = hear_both(flow, self._outcomes)
            self._client = join_service(self._ranks, config, here, self._generation, hear)
            undo.callback(self._client.close, goodbye=False)
            self._replication = PeerReplicas(replicas, self._ranks, self._client, self._events)
            self._replication.begin(self._generation)
            self._vote = LaggedVote(self._ranks.control)
            self._planner = Planner(self._ranks, self._check)
            self._shipper = shipper_for(
                staging,
                self._client,
                self._ranks,
                self._outcomes,
                self._events,
                flow,
                slots=slots,
                overlap=overlap,
            )
            self._preparer = Preparer(self._ranks, here, self._planner, self._shipper, differing)
            self._dropped = when_dropped(
                self, partial(release_abandoned, self._shipper, self._client, self._store)
            )
            undo.pop_all()
        self._saves = 0  # begun by this object, the same number on all ranks
        self._started: set[int] = set()  # steps that were saved or are being saved
        self._last_step: int | None = None
        self._last_save_s = self._made_s = time.monotonic()
        self._interruptions = Interruptions()
        self._may_hold_unsaved = (
            True  # whether the service may hold a snapshot that exists nowhere else
        )
        self._closed = False

    def restore(
        self,
        state: dict[str, Any],
        *,
        await_unseen: bool = True,
        check: Check | None = None,
    ) -> int | None:
        """Load the newest whole checkpoint into `state`, in place. Returns its step, or None if the
        run has no checkpoint.

        The newest snapshot that trainers of this run have left in the memory of their nodes counts
        as a checkpoint: it is loaded from there if the ranks and their states are unchanged, and is
        made durable first if not. Nothing in `state` changes before everything was read and checked
        on every rank. A damaged checkpoint is skipped with a warning and an event, and the next
        older one is used.

        Args:
            await_unseen: if only some ranks' parts of a newer snapshot are found, wait for the
                others, which nodes that have left the job may still make durable. False: there are
                no such nodes, or they are known to be lost, so only parts that are already in the
                store count.
            check: called on each rank once a checkpoint is loaded into `state`; returns why it must
                not be used, or None. A checkpoint that any rank rejects is skipped as if it were
                damaged, and the next older one is loaded.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged or rejected by `check`.
            StructureError: the checkpoint holds other tensors or values than `state`.
            FormatError: the checkpoint is of a format that this version does not know.
            TypeError, ValueError: `state` holds something that cannot be saved or restored.
            StageError: the node has not enough memory for the snapshots.
        """
        self._need_open()
        self._shipper.settle()
        started_s = time.monotonic()
        new_resumer = partial(
            Resumer,
            self._store,
            self._run,
            self._ranks,
            self._client,
            self._planner,
            self._preparer,
            self._events,
            self._replication,
            await_unseen=await_unseen,
            avoids_suspects=self._check.every > 0,
        )
        made: list[Resumer] = []

        def make(*, rejected: dict[str, str]) -> Resumer:
            made.append(new_resumer(rejected=rejected))
            return made[-1]

        try:
            resumed, resumer = newest_accepted(make, state, check, self._ranks, self._events)
        except (StructureError, FormatError):  # of the same kind on all ranks
            self._adopt_refused(made[-1])
            raise
        self._begin_generation(resumed, resumer, state)
        if resumed is None:
            return None
        self._events.emit(
            "checkpoint_restored",
            step=resumed.step,
            seconds=time.monotonic() - started_s,
            bytes=resumed.bytes,
            tier=resumed.tier,
        )
        return resumed.step

    def due(self, step: int) -> bool:
        """Returns whether to save at `step`; the answer is the same on every rank.

        A policy that looks at the clock answers one call late, so that no rank waits for another.
        """
        self._need_open()
        if self._every is None:
            return False
        opinion = self._every.due(self._situation(step))
        return self._vote(opinion) if self._every.uses_clock else opinion

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
        *,
        deadline_s: float | None = None,
    ) -> None:
        """Start a save; returns once everything that may change at any time is copied.

        Parameters and optimizer state are copied while training goes on (`overlap`): the next step
        of an optimizer waits for that. A step whose save was already started is not saved again,
        unless `wait` has reported that it failed. If the store is so slow that all slots are in
        use, the save is skipped ("save_skipped"). A failed save is reported by the event
        "checkpoint_failed", the log and `wait()`; training goes on, and the service keeps trying to
        make it durable until there is a newer one.

        No rank waits for another, except at the first save and after a change of the state's
        structure. With staging="buckets" all ranks wait: this returns on all of them once the
        service has read, or is about to read, the last byte of each, and a failure on one rank
        fails the save on all. The store may be slow, but if it is unreachable for about two
        minutes, or no bucket is emptied for five, the save fails.

        Args:
            deadline_s: seconds within which the save should be durable: compression is reduced for
                that, and a snapshot that the store would have too late is first copied to `local`
                ("checkpoint_tier").

        Raises:
            TypeError, ValueError: something in `state` or `metrics` cannot be saved.
            StageError: the node has not enough memory for the snapshots.
            SaveError: nothing has become durable for `max_unsaved` minutes, or ranks hold different
                values, see `differing`.
        """
        self._need_open()
        started_s = time.monotonic()
        if check_step(step) in self._started:
            return
        numbers = {key: float(value) for key, value in (metrics or {}).items()}
        if self._max_unsaved is not None and self._started:
            self._outcomes.check_age(self._max_unsaved)
        self._shipper.settle()
        leaves, stepped = to_save(state), optimizers(state)
        try:
            planned = self._preparer.ready(leaves, stepped)
        except CheckpointError:
            self._client.unstaged(step)
            raise
        self._begin(step)
        self._events.emit("checkpoint_started", step=step)
        self._saves += 1
        try:
            slot = self._shipper.claim(step, planned)
            if isinstance(slot, str):
                self._outcomes.end(step, SaveStatus.GONE, slot)
                self._events.emit("save_skipped", step=step, reason=slot)
            else:
                request = SaveRequest(
                    step,
                    leaves.values,
                    numbers,
                    time.time(),
                    started_s,
                    deadline_s,
                    is_compared=self._check.is_due(self._saves - 1),
                )
                self._shipper.ship(request, slot, planned, leaves, self._generation)
        except BaseException as error:  # most often KeyboardInterrupt
            self._shipper.fail(step, error)
            self._started.discard(step)
            raise
        self.stall_s = time.monotonic() - started_s

    def wait(self) -> None:
        """Block until the newest save is committed or has failed. Collective.

        If it was skipped, this waits until the saves before it have ended, so that there is a free
        slot again.

        Raises:
            SaveError: it failed or was skipped on any rank; the message says which and why. Raised
                once per save.
        """
        self._need_open()
        self._wait()

    def _wait(self) -> None:
        self._shipper.settle()
        step = self._last_step if self._last_step in self._started else None
        try:
            wait_together(self._ranks, self._outcomes, step)
        except SaveError:
            if step is not None:
                # on all ranks, so that all of them may save this step again
                self._started.discard(step)
            raise
        self._may_hold_unsaved = self._may_hold_unsaved and step is None

    def close(self) -> None:
        """Wait for the newest save, then release all resources. Call it before torch.distributed is
        shut down.

        What could not be saved stays in the node's checkpoint service, which keeps trying for a
        while.

        Raises:
            SaveError: the last save failed.
        """
        if self._closed:
            return
        self._closed = True
        self._dropped.detach()
        with ExitStack() as last:
            last.callback(self._ranks.close)
            last.callback(self._store.close)
            last.callback(self._shipper.close)
            last.callback(self._close_client)
            last.callback(self._shipper.settle)
            self._wait()

    def _close_client(self) -> None:
        self._client.close(goodbye=not self._may_hold_unsaved)

    def _begin_generation(
        self, resumed: RestoreResult | None, resumer: Resumer, state: Mapping[str, Any]
    ) -> None:
        """Start a new service generation, because later steps may be saved again after a
        restore."""
        self._adopt_takeover(resumer.owner)
        self._outcomes.clear()
        self._started.clear()
        self._interruptions = resumer.interruptions
        self._preparer.ahead(state)
        if resumed is not None:
            self._mark_saved(resumed.step)
            if resumed.found is not None:
                self._save_restored(resumed, state)
        self._ranks.all_or_none(lambda: self._client.resume(resumer.damaged, resumer.distrusted))
        self._may_hold_unsaved = bool(self._started)

    def _adopt_refused(self, resumer: Resumer) -> None:
        """Adopt the takeover of a restore that was refused, if it got that far: the saves before it
        are committed or abandoned. Collective."""
        if self._ranks.from_rank0(lambda: resumer.owner is not None):
            self._adopt_takeover(resumer.owner)
            self._outcomes.clear()
            self._started.clear()

    def _adopt_takeover(self, owner: int | None) -> None:
        """Save under this takeover from now on, as a new service generation. Collective.

        Args:
            owner: the takeover's number, on rank 0; None: there was none.
        """
        number = owner if owner is not None else self._generation.owner
        self._generation = new_generation(self._ranks, number)
        self._ranks.all_or_none(lambda: self._client.sit_as(self._generation))
        self._replication.begin(self._generation)

    def _save_restored(self, resumed: RestoreResult, state: Mapping[str, Any]) -> None:
        """Save a state that was restored from memory alone as one of this generation's, before its
        old slot is lost."""
        if not self._ranks.from_rank0(lambda: self._has(resumed.step)):
            self._ranks.all_or_none(lambda: self._save_restored_here(resumed, state))

    def _save_restored_here(self, resumed: RestoreResult, state: Mapping[str, Any]) -> None:
        found, said, planned = resumed.found, resumed.said, self._preparer.planned
        assert found is not None
        assert said is not None
        assert planned is not None
        if resumed.has_moved or not self._shipper.has_moved_in:
            self.save(resumed.step, state, said.metrics)
            self._shipper.settle()
            return
        self._begin(resumed.step)
        request = SaveRequest(
            resumed.step, said.values, said.metrics, time.time(), time.monotonic(), None
        )
        self._shipper.adopt(request, found.slot, planned, self._generation, said.fingerprints)

    def _has(self, step: int) -> bool:
        found, _ = committed(self._store, self._run)
        return any(one.stored.save.step == step for one in found)

    def _begin(self, step: int) -> None:
        self._outcomes.begin(step)
        self._started.add(step)
        self._may_hold_unsaved = True
        self._mark_saved(step)

    def _need_open(self) -> None:
        if self._closed:
            raise CheckpointError("this Checkpointer is closed: make a new one")
        if self._ranks.is_outdated():
            raise CheckpointError(
                "torch.distributed was initialised after this Checkpointer was made, so it knows "
                "of one rank only: make it after init_process_group()"
            )

    def _situation(self, step: int) -> SaveSituation:
        now_s = time.monotonic()
        return SaveSituation(
            step,
            self._last_step,
            now_s,
            self._last_save_s,
            stall_s=self.stall_s + self._shipper.waited_s,
            durable_s=self._outcomes.seconds,
            failures=self._interruptions.failures,
            trained_s=self._interruptions.trained_s + now_s - self._made_s,
        )

    def _mark_saved(self, step: int) -> None:
        self._last_step, self._last_save_s = step, time.monotonic()
        self._vote.void()
