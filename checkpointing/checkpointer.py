"""The `Checkpointer`, the class through which a trainer saves and restores its state."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Self, Unpack, overload

from checkpointing.connections import (
    Connections,
    CurrentGeneration,
    MessageDispatcher,
    join_service,
    open_store,
)
from checkpointing.errors import CheckpointError
from checkpointing.event_file import writer_from_env
from checkpointing.events import CheckpointRestored, Events
from checkpointing.format.object_keys import check_step
from checkpointing.options import CheckpointerKeywords, CheckpointerOptions, check_keywords
from checkpointing.ranks.node_ranks import ranks_on_node
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore.peer_replicas import PeerReplicas
from checkpointing.restore.restore_pipeline import Check, RestorePipeline
from checkpointing.restore.snapshot_choice import RestoreOptions
from checkpointing.save.process_exit import when_dropped
from checkpointing.save.save_outcomes import OutcomeListener
from checkpointing.save.save_pipeline import SavePipeline
from checkpointing.save.save_schedule import SaveSchedule
from checkpointing.save.shipper import SnapshotShipper
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.state.item_adapters import import_state_dicts
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")


class Checkpointer:
    """Saves a training state without stopping training, and restores the newest whole checkpoint.

    Works in a single process or under torch.distributed, where all ranks construct it and call
    every method at the same point of their programs. `state` is a dict of name -> module,
    optimizer, object with state_dict() and load_state_dict(), tensor, or nested plain values.
    DTensors are saved by their shards and restored onto any world size; everything else is assumed
    to be the same on all ranks and is written once.

    A save copies the state into shared memory, and the node's checkpoint service makes it durable.
    The service is a separate process, which this starts if it is not running. It outlives
    the trainer and keeps the newest snapshot for the next start.

    The options are given as keywords, or as one value:

        ckpt = Checkpointer("s3://bucket/ckpts", run="gpt-7b", every=Minutes(10), keep=[Last(3)])
        ckpt = Checkpointer("s3://bucket/ckpts", CheckpointerOptions(run="gpt-7b", slots=3))

    `with Checkpointer(...) as ckpt:` closes it at the end of the block.

    Args:
        root: the store that all ranks can write to: a directory, s3://bucket/folder, or any URL
            that fsspec knows. It is created if it does not exist.
        configuration: all options.
        keywords: the fields of `CheckpointerOptions`, which describes them; only `run` is required.

    Raises:
        StoreError: the store cannot be used: its URL is unsupported, or it is unreachable or not
            writable.
        ServiceError: the node's service cannot be started.
        ValueError: an option has a value that it cannot have.
    """

    @overload
    def __init__(
        self, root: str | os.PathLike[str], configuration: CheckpointerOptions
    ) -> None: ...

    @overload
    def __init__(
        self, root: str | os.PathLike[str], **keywords: Unpack[CheckpointerKeywords]
    ) -> None: ...

    def __init__(
        self,
        root: str | os.PathLike[str],
        configuration: CheckpointerOptions | None = None,
        **keywords: Any,
    ) -> None:
        if configuration is None:
            check_keywords(keywords)
            configuration = CheckpointerOptions(**keywords)
        elif keywords:
            raise TypeError(f"give options as one value or as keywords, not both: {keywords}")
        if not isinstance(root, str | os.PathLike):
            raise TypeError(f"Checkpointer: give the folder or the URL of a store, got {root!r}")
        self._closed = False
        import_state_dicts()
        with ExitStack() as undo:
            self._ranks = ranks = RankGroup()
            undo.callback(ranks.close)
            on_event = configuration.on_event
            events = Events(writer_from_env() if on_event is None else on_event, ranks.rank)
            self._store = store = open_store(ranks, root, configuration.options)
            undo.callback(store.close)
            messages = MessageDispatcher()
            self._outcomes = OutcomeListener(events, store.url)
            messages.add(self._outcomes.handle)
            here = ranks_on_node(ranks)
            generation = CurrentGeneration(ranks)
            service = configuration.service_config(root)
            self._client = join_service(ranks, service, here, generation.value, messages.dispatch)
            undo.callback(self._client.close, goodbye=False)
            connections = Connections(
                configuration.run, ranks, here, events, store, self._client, messages
            )
            replication = PeerReplicas(configuration.replicas, connections)
            replication.connect(generation.value)
            self._schedule = SaveSchedule(configuration.every, ranks)
            self._restored_certified = ""
            self._saves = SavePipeline(
                connections, configuration.save_options, self._outcomes, self._schedule, generation
            )
            self._shipper = self._saves.shipper
            self._restores = RestorePipeline(
                connections, self._saves, self._schedule, generation, replication
            )
            self._events, self._options = events, configuration
            self._dropped = when_dropped(
                self, partial(_release_abandoned, ranks, self._shipper, self._client, store)
            )
            undo.pop_all()

    @property
    def stall_s(self) -> float:
        """Seconds that training waited in the last `save`."""
        return self._saves.stall_s

    def restore(
        self,
        state: dict[str, Any],
        *,
        await_unseen: bool = True,
        check: Check | None = None,
        prefer_certified: bool = False,
        avoid: Mapping[str, str] | None = None,
        is_fresh: bool = False,
    ) -> int | None:
        """Load the newest whole checkpoint into `state`, in place. Returns its step, or None if the
        run has no checkpoint.

        The newest snapshot that trainers of this run have left in the memory of their nodes counts
        as a checkpoint: it is loaded from there if the ranks and their states are unchanged, and is
        made durable first if not. Nothing in `state` changes before everything was read and checked
        on every rank, unless it is fresh. A damaged checkpoint is skipped with a warning and an
        event, and the next older one is used.

        Args:
            await_unseen: if only some ranks' parts of a newer snapshot are found, wait for the
                others, which nodes that have left the job may still make durable. False: there are
                no such nodes, or they are known to be lost, so only parts that are already in the
                store count.
            check: called on each rank once a checkpoint is loaded into `state`; returns why it must
                not be used, or None. A checkpoint that any rank rejects is skipped as if it were
                damaged, and the next older one is loaded.
            prefer_certified: load the newest one that was saved as certified, although others may
                be newer; of these, the newest only if no certified one can be used, with a warning.
            avoid: ids of checkpoints that are not used, as `check` has rejected them before, and
                why; those of rank 0 count. Checkpoints that are newer than the one that is loaded,
                and these, do not count for the retention policies.
            is_fresh: `state` was just built, and holds nothing that is needed if this fails. What
                is read from the store for tensors in host memory then goes into them as soon as it
                is checked, chunk by chunk, instead of once everything is checked on every rank.
                This takes less time and half the memory. Tensors that other ranks hold too, or
                that share memory, wait for all ranks as ever. A snapshot in memory is copied while
                this job takes the run over. If this raises, the content of `state` is undefined.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged or rejected by `check`.
            StructureError: the checkpoint holds other tensors or values than `state`.
            FormatError: the checkpoint is of a format that this version does not know.
            TypeError, ValueError: `state` holds something that cannot be saved or restored.
            StageError: the node has not enough memory for the snapshots.
            OtherRankError: another rank has ended, or failed with another kind of error.
        """
        self._need_open()
        self._shipper.settle()
        started_s = time.monotonic()
        options = RestoreOptions(
            await_unseen,
            avoids_suspects=self._options.save_options.check.every > 0,
            prefers_certified=prefer_certified,
            is_fresh=is_fresh,
        )
        resumed = self._restores.restore(state, check, options, avoid)
        self._restored_certified = "" if resumed is None else resumed.certified
        if resumed is None:
            return None
        self._events.emit(
            CheckpointRestored(
                step=resumed.step,
                seconds=time.monotonic() - started_s,
                bytes=resumed.bytes,
                tier=resumed.tier,
            )
        )
        return resumed.step

    @property
    def restored_certified(self) -> str:
        """How the state that was restored last was certified, as it was given to `save`; "": it was
        not."""
        return self._restored_certified

    def due(self, step: int) -> bool:
        """Returns whether to save at `step`; the answer is the same on every rank.

        A policy that looks at the clock answers one call late, so that no rank waits for another.
        """
        self._need_open()
        return self._schedule.due(
            check_step(step),
            stall_s=self.stall_s + self._shipper.waited_s,
            durable_s=self._outcomes.seconds,
        )

    def save(
        self,
        step: int,
        state: Mapping[str, Any],
        metrics: Mapping[str, float] | None = None,
        *,
        deadline_s: float | None = None,
        certified: str = "",
        is_last: bool = False,
    ) -> None:
        """Start a save; returns once everything that may change at any time is copied.

        Parameters and optimizer state are copied while training continues (`overlap`): the next
        step of an optimizer waits for that. A step whose save was already started is not saved
        again, unless `wait` has reported that it failed. If the store is so slow that all slots are
        in use, the save is skipped ("save_skipped"). A failed save is reported by the event
        "checkpoint_failed", the log and `wait()`; training continues, and the service keeps trying
        to make it durable until there is a newer one.

        No rank waits for another, except at the first save and after a change of the state's
        structure. With staging="buckets" all ranks wait: this returns on all of them once the
        service has read, or is about to read, the last byte of each, and a failure on one rank
        fails the save on all. The store may be slow, but if it is unreachable for about two
        minutes, or no bucket is emptied for five, the save fails.

        Args:
            is_last: no save follows, so this one must not be skipped: if no slot is free, it waits
                for the saves before it and is made then. It also waits for a save of the same step
                that was started before, and if that fails, saves the step again. Collective.
            deadline_s: seconds within which the save should be durable: compression is reduced for
                that, and a snapshot that the store would have too late is first copied to `local`
                ("checkpoint_tier").
            certified: how the caller has checked, on all ranks, that they compute rightly from this
                state, such as "bits"; it is stored with the checkpoint. "": it has not.

        Raises:
            TypeError, ValueError: something in `state` or `metrics` cannot be saved, or a later
                step was saved before.
            StageError: the node has not enough memory for the snapshots.
            SaveError: nothing has become durable for `max_unsaved` minutes, or ranks hold different
                values, see `differing`.
        """
        self._need_open()
        self._saves.save(step, state, metrics, deadline_s, certified, is_last=is_last)

    def wait(self) -> None:
        """Block until the newest save is committed or has failed. Collective.

        If it was skipped, this waits until the saves before it have ended, so that there is a free
        slot again.

        Raises:
            SaveError: it failed or was skipped on any rank; the message says which and why. Raised
                once per save.
        """
        self._need_open()
        self._saves.wait()

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
            self._saves.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close at the end of a `with` block. After an exception, no save is waited for: what was
        staged is handed to the node's checkpoint service, which saves it."""
        if kind is None:
            self.close()
        elif not self._closed:
            self._closed = True
            self._dropped.detach()
            _hand_over(self._ranks, self._shipper, self._client, self._store)

    def _close_client(self) -> None:
        self._client.close(goodbye=not self._saves.may_hold_unsaved)

    def _need_open(self) -> None:
        if self._closed:
            raise CheckpointError("this Checkpointer is closed: create a new one")
        if self._ranks.is_outdated():
            raise CheckpointError(
                "torch.distributed was initialised after this Checkpointer was created, which "
                "therefore has only one rank: create it after init_process_group()"
            )


def _release_abandoned(
    ranks: RankGroup, shipper: SnapshotShipper, client: ServiceClient, store: Store
) -> None:
    """Release a Checkpointer that was never closed."""
    logger.warning("a Checkpointer was discarded without close(): its staged snapshots are saved")
    _hand_over(ranks, shipper, client, store)


def _hand_over(
    ranks: RankGroup, shipper: SnapshotShipper, client: ServiceClient, store: Store
) -> None:
    """Hand over the snapshot that is being copied, and release everything else."""
    ranks.close()  # first, so that ranks which wait for this one learn that it has left
    shipper.settle()
    client.close(goodbye=False)
    shipper.close()
    store.close()
