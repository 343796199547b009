"""Checkpointer: the one class that a trainer meets."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from checkpointing.agreement import LaggedVote
from checkpointing.background import BackgroundSave
from checkpointing.errors import CheckpointError, SaveError, StoreError
from checkpointing.events import Events, OnEvent
from checkpointing.format.names import MAX_STEP, check_run
from checkpointing.policy import SavePolicy
from checkpointing.pruning import Pruner
from checkpointing.ranks import Ranks
from checkpointing.restoring import Restorer
from checkpointing.retention import KeepPolicy
from checkpointing.saving import Saver, Snapshot
from checkpointing.staging import Staging
from checkpointing.state import LoadTarget, to_save
from checkpointing.store.encoding import ChunkEncoder
from checkpointing.store.leases import storage_time
from checkpointing.store.store import Store
from checkpointing.store.writer import Options


class Checkpointer:
    """Saves a training state without stopping training, and restores the newest whole checkpoint.

    Works alone or under torch.distributed: then all ranks construct it and call every method at
    the same point of their programs. `state` is a dict of name -> module, optimizer, object with
    state_dict() and load_state_dict(), tensor, or nested plain values. DTensors are saved by their
    shards and restored onto any world size; everything else is taken to be the same on all ranks,
    and is written once.

    Args:
        root: the store that all ranks can write to: a directory, s3://bucket/folder, or any URL
            that fsspec knows. It is made if it is not there.
        run: name of the run in the store.
        every: when `due` says yes (`Steps(50)`, `Minutes(10)`, or both joined by |); None: never.
        keep: which checkpoints to keep; empty keeps all.
        compress: store what pays compressed, or as the difference to the last save.
        options: of the storage, see `checkpointing.storage.open_storage`.
        on_event: called as `on_event(kind, **fields)` on rank 0, from the trainer's thread or the
            writer's.

    Raises:
        StoreError: the store cannot be used: unknown URL, out of reach, not writable.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        run: str,
        every: SavePolicy | None = None,
        keep: Sequence[KeepPolicy] = (),
        compress: bool = True,
        options: Mapping[str, Any] | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self.stall_s = 0.0  # seconds the trainer waited in the last save()
        self._run, self._every = check_run(run), every
        self._ranks = Ranks()
        self._events = Events(on_event, self._ranks.rank)
        self._store = self._open(root, options)
        self._vote = LaggedVote(self._ranks.control)
        self._pruner = Pruner(self._store, run, keep, self._events)
        encoder = ChunkEncoder() if compress else ChunkEncoder(None)
        self._saver = Saver(
            self._store, run, self._ranks, self._events, self._pruner, Options(encoder=encoder)
        )
        self._staging = Staging()
        self._saving: BackgroundSave | None = None
        self._failure: SaveError | None = None  # of the last save, until it was raised
        self._started: set[int] = set()  # steps that were saved or are being saved
        self._last_step: int | None = None
        self._last_save_s = time.monotonic()
        self._closed = False

    def restore(self, state: dict[str, Any]) -> int | None:
        """Load the newest whole checkpoint into `state`, in place; its step, or None if none is.

        Nothing in `state` changes before everything was read and checked on every rank. Damaged
        checkpoints are passed over for older ones, with a warning and an event.

        Raises:
            CheckpointError: there are checkpoints, but all are damaged.
            StructureError: the checkpoint holds other tensors or values than `state`.
            FormatError: the checkpoint is of a format that this version does not know.
            TypeError, ValueError: `state` holds something that cannot be saved or restored.
        """
        self._need_open()
        self._settle()
        started_s = time.monotonic()
        restorer = Restorer(self._store, self._run, self._ranks, self._staging, self._events)
        if not restorer.take_over():
            return None
        target = LoadTarget(state)
        try:
            restored = restorer.read_newest(target)
        except CheckpointError:
            target.abandon()
            raise
        self._pruner.damaged.update(restorer.skipped)
        names = target.wants().of(restored.inventory).tensors
        self._staging.copy_back({name: target.leaves.tensors[name] for name in names})
        target.finish(restored.inventory)
        step = restored.checkpoint.header.save.step
        self._saver.distrust(restored.distrusted)
        self._saver.new_session()  # after going back, later steps may be saved a second time
        self._started.clear()
        self._mark_saved(step)
        seconds = time.monotonic() - started_s
        self._events.emit("checkpoint_restored", step=step, seconds=seconds, bytes=restored.size)
        return step

    def due(self, step: int) -> bool:
        """Whether to save at `step`; the same answer on every rank.

        By the clock, the answer is one call late, so that no rank waits for another to give it.
        """
        self._need_open()
        if self._every is None:
            return False
        opinion = self._every.due(step, self._last_step, time.monotonic(), self._last_save_s)
        return self._vote(opinion) if self._every.uses_clock else opinion

    def save(
        self, step: int, state: Mapping[str, Any], metrics: Mapping[str, float] | None = None
    ) -> None:
        """Start saving; returns once the state is staged and may change again.

        A step whose save was started already is left alone; one that failed may be tried again
        after `wait()`. One save runs at a time: if the one
        before is still writing, this waits for it ("checkpoint_waited"). A failed save is told by
        the event "checkpoint_failed", the log, and `wait()`; training goes on.

        Raises:
            TypeError, ValueError: something in `state` or `metrics` cannot be saved.
        """
        self._need_open()
        started_s = time.monotonic()
        if _checked_step(step) in self._started:
            return
        numbers = {key: float(value) for key, value in (metrics or {}).items()}
        self._events.emit("checkpoint_started", step=step)
        self._wait_for_previous(step)
        leaves = to_save(state)
        tensors = self._staging.copy(leaves.tensors)
        snapshot = Snapshot(step, tensors, leaves.values, numbers, time.time(), started_s)
        self._started.add(step)
        self._mark_saved(step)
        self.stall_s = time.monotonic() - started_s
        self._events.emit(
            "checkpoint_staged", step=step, stall_s=self.stall_s, bytes=self._staging.bytes
        )
        self._saving = BackgroundSave(snapshot, self._saver.save)

    def wait(self) -> None:
        """Block until the save that was started is committed or has failed.

        Raises:
            SaveError: the last save failed (raised once).
        """
        self._settle()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Wait, then release everything; call it before torch.distributed is ended.

        Raises:
            SaveError: the last save failed, and `wait` has not said so.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.wait()
        finally:
            self._saver.new_session()
            self._store.close()
            self._ranks.close()

    def _open(self, root: str | os.PathLike[str], options: Mapping[str, Any] | None) -> Store:
        """The store. Every rank must be able to write to it: one that cannot fails every save."""
        store, problem = None, None
        try:
            store = Store.open(root, options=options, create=True)
            storage_time(store)
        except (CheckpointError, OSError) as error:
            problem = f"rank {self._ranks.rank}: {error}"
        problems = [p for p in self._ranks.all_gather(problem, self._ranks.control) if p]
        if problems or store is None:
            if store is not None:
                store.close()
            raise StoreError(f"cannot keep checkpoints in {root}: {'; '.join(problems)}")
        return store

    def _need_open(self) -> None:
        if self._closed:
            raise CheckpointError("this Checkpointer is closed: make a new one")
        if self._ranks.is_outdated():
            raise CheckpointError(
                "torch.distributed was initialised after this Checkpointer was made, so it knows "
                "of one rank only: make it after init_process_group()"
            )

    def _mark_saved(self, step: int) -> None:
        self._last_step, self._last_save_s = step, time.monotonic()
        self._vote.void()

    def _wait_for_previous(self, step: int) -> None:
        saving, before_s = self._saving, time.monotonic()
        has_to_wait = saving is not None and saving.running()
        self._settle()
        if saving is not None and has_to_wait:
            waited_s = time.monotonic() - before_s
            self._events.emit("checkpoint_waited", step=step, writing=saving.step, seconds=waited_s)

    def _settle(self) -> None:
        """Wait for the running save and take its result. Only here does a failed step become one
        that may be saved again: at a point of the program that is the same for every rank."""
        if self._saving is None:
            return
        outcome = self._saving.wait()
        self._saving = None  # not before: the thread reads the staging buffers
        self._failure = outcome.failure
        if outcome.failure is not None:
            self._started.discard(outcome.step)


def _checked_step(step: int) -> int:
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_STEP:
        raise ValueError(f"a step is a whole number from 0 to {MAX_STEP}, got {step!r}")
    return step
