"""Checkpointer: the one class that a trainer meets."""

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

    Works alone or under torch.distributed: then all ranks construct it and call every method at
    the same point of their programs. `state` is a dict of name -> module, optimizer, object with
    state_dict() and load_state_dict(), tensor, or nested plain values. DTensors are saved by their
    shards and restored onto any world size; everything else is taken to be the same on all ranks,
    and is written once.

    A save copies the state into shared memory; a service of the node, a process of its own that
    this starts if it is not there, makes it durable. It goes on when the trainer has died, and
    keeps the newest snapshot for the next start.

    Args:
        root: the store that all ranks can write to: a directory, s3://bucket/folder, or any URL
            that fsspec knows. It is made if it is not there.
        run: name of the run in the store.
        every: when `due` says yes: `Steps(50)`, `Minutes(10)`, `Auto(mtbf_s=3600)`, or several
            joined by |; None: never.
        keep: which checkpoints to keep; empty keeps all.
        compress: store what pays compressed, or as the difference to an earlier save.
        depth: earlier saves that a reader of such a difference has to read, at most; more store
            less and read more (`benchmarks/README.md` has both).
        options: of the storage, see `checkpointing.storage.open_storage`; plain values.
        on_event: called as `on_event(kind, **fields)` on rank 0, from the trainer's thread or
            another.
        slots: snapshots of each rank that its node's memory holds. With 2 the last one stays whole
            while the next is copied; more ride out a slow store.
        staging: "slots"; or "buckets" where a node is short of memory: the state passes through
            a tenth of its size, and `save` blocks for as long as the service needs to read it.
            Nothing is left in memory then to go on from.
        overlap: copy parameters and optimizer state while training goes on; the optimizers' steps
            wait for it. Wrong where something else than the optimizers in `state` writes to them:
            what is noticed of that fails the save.
        budget: what the service may take of its node.
        local: a folder of one's own on each node's own disk, made with mode 0700 if it is not
            there. What has a deadline that the store would miss is copied there first, and found
            by the next trainers on the node; it goes when it is durable. None: no such copies.
        max_unsaved: minutes without a new durable checkpoint after which `save` raises, instead of
            training on at ever greater risk; None: never.
        differing: what becomes of values and small tensors, beside modules and optimizers, that are
            not the same on all ranks and are not declared as `PerRank`: "error": `restore`, or the
            first `save` if that comes before, raises SaveError and names them; "warn": a warning,
            and one rank's are kept for all.
        check_replicas: what several ranks hold alike is compared by fingerprints when it is saved,
            without a collective: "every": at every save; a number: at the first of so many; False:
            never. A checkpoint of which replicas differ is committed and marked: an event and the
            log name the tensors and ranks, and `restore` prefers the newest one without a mark.
        may_differ: patterns, as of `fnmatch`, of names of tensors and values that ranks may have of
            their own: those are not compared.
        replicas: 1: the next node keeps the two newest snapshots of each rank too (in so much of
            its memory), so that the loss of a node loses none of them; 0: it does not.

    Raises:
        StoreError: the store cannot be used: unknown URL, out of reach, not writable.
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
        self._saves = 0  # begun by this object, on every rank alike
        self._started: set[int] = set()  # steps that were saved or are being saved
        self._last_step: int | None = None
        self._last_save_s = self._made_s = time.monotonic()
        self._past = Interruptions()
        self._is_owed = True  # whether the service may have what is nowhere else
        self._closed = False

    def restore(
        self,
        state: dict[str, Any],
        *,
        await_unseen: bool = True,
        check: Check | None = None,
    ) -> int | None:
        """Load the newest whole checkpoint into `state`, in place; its step, or None if none is.

        The newest snapshot that trainers of this run have left in the memory of their nodes counts
        as one: it is loaded from there if the ranks and their states are the same as then, and
        made durable first if not. Nothing in `state` changes before everything was read and checked
        on every rank. Damaged checkpoints are passed over for older ones, with a warning and an
        event.

        Args:
            await_unseen: of a newer snapshot that only some ranks' parts are found of, the others
                may be on nodes that are not here any more, and become durable: wait for that.
                False: there are no such nodes, or they are known to be lost; only what is in the
                store already is waited for.
            check: called on each rank once `state` has taken over a checkpoint: why it is not to
                be gone on from, or None. One that a rank has a reason against is passed over as if
                it were damaged, and the next older one taken over.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged, or passed over by `check`.
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
            self._refused(made[-1])
            raise
        self._begin_anew(resumed, resumer, state)
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
        """Whether to save at `step`; the same answer on every rank.

        By the clock, the answer is one call late, so that no rank waits for another to give it.
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
        """Start saving; returns once what may change at any time is copied.

        Parameters and optimizer state are copied while training goes on (`overlap`): the next step
        of an optimizer waits for that. A step whose save was started already is left alone, unless
        `wait` has told that it failed. If the store is so slow that the node's memory has no place
        for another snapshot, the save is skipped ("save_skipped"). A failed save is told by the
        event "checkpoint_failed", the log, and `wait()`; training goes on, and so do the attempts
        to make it durable until there is a newer one.

        No rank waits for another, but for the first state and where its structure has changed.
        With staging="buckets" all wait: this returns on all ranks once the service has, or is about
        to have, read the last byte of each, and one that fails is the end of the save on all. The
        store may be slow, but if it is out of reach for some two minutes, or no bucket is emptied
        for five, the save fails.

        Args:
            deadline_s: seconds in which it should be durable: compression gives way to that, and
                what the store would have too late gets a `local` copy first ("checkpoint_tier").

        Raises:
            TypeError, ValueError: something in `state` or `metrics` cannot be saved.
            StageError: the node has not enough memory for the snapshots.
            SaveError: nothing has become durable for `max_unsaved` minutes; or ranks hold other
                values than each other, see `differing`.
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
        except BaseException as error:  # an interrupt, most often
            self._shipper.fail(step, error)
            self._started.discard(step)
            raise
        self.stall_s = time.monotonic() - started_s

    def wait(self) -> None:
        """Block until the newest save is committed or has failed. A collective.

        If it was skipped, until those before it have ended: then there is a place for another.

        Raises:
            SaveError: it failed or was skipped, on any rank; says which and why. Said once.
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
                self._started.discard(step)  # on all ranks, so that all of them may save it again
            raise
        self._is_owed = self._is_owed and step is None

    def close(self) -> None:
        """Wait, then release everything; call it before torch.distributed is ended.

        What could not be saved stays in the node's service, which goes on trying for a while.

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
            last.callback(self._leave)
            last.callback(self._shipper.settle)
            self._wait()

    def _leave(self) -> None:
        self._client.close(goodbye=not self._is_owed)

    def _begin_anew(
        self, resumed: RestoreResult | None, resumer: Resumer, state: Mapping[str, Any]
    ) -> None:
        """As another generation: after going back, later steps may be saved a second time."""
        self._go_by(resumer.owner)
        self._outcomes.clear()
        self._started.clear()
        self._past = resumer.interruptions
        self._preparer.ahead(state)
        if resumed is not None:
            self._mark_saved(resumed.step)
            if resumed.found is not None:
                self._hold(resumed, state)
        self._ranks.all_or_none(lambda: self._client.resume(resumer.damaged, resumer.distrusted))
        self._is_owed = bool(self._started)

    def _refused(self, resumer: Resumer) -> None:
        """Go by the take-over of a restore that was refused, if it came to that: what was being
        saved before is done or dead. A collective."""
        if self._ranks.from_rank0(lambda: resumer.owner is not None):
            self._go_by(resumer.owner)
            self._outcomes.clear()
            self._started.clear()

    def _go_by(self, owner: int | None) -> None:
        """Save by this take-over from now on, as another generation. A collective.

        Args:
            owner: its number, on rank 0; None: there was none.
        """
        number = owner if owner is not None else self._generation.owner
        self._generation = new_generation(self._ranks, number)
        self._ranks.all_or_none(lambda: self._client.sit_as(self._generation))
        self._replication.begin(self._generation)

    def _hold(self, resumed: RestoreResult, state: Mapping[str, Any]) -> None:
        """Keep what was restored from memory alone: save it as one of this generation's, before
        its old place there is lost."""
        if not self._ranks.from_rank0(lambda: self._has(resumed.step)):
            self._ranks.all_or_none(lambda: self._hold_here(resumed, state))

    def _hold_here(self, resumed: RestoreResult, state: Mapping[str, Any]) -> None:
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
        self._is_owed = True
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
            failures=self._past.failures,
            trained_s=self._past.trained_s + now_s - self._made_s,
        )

    def _mark_saved(self, step: int) -> None:
        self._last_step, self._last_save_s = step, time.monotonic()
        self._vote.void()
