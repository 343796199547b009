"""The registry of a node's snapshots: which trainers are connected, which snapshots each rank has
in shared memory, and how far each generation has come.

It holds the only lock of the service, and nothing that may take long is done under it. Beside it,
`slot_choice` decides which slot is used next, and `rank_slots` and `generation_state` hold what one
rank and one generation have.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.errors import ServiceError
from checkpointing.service.registry.bucket_stream import BucketStream, is_torn
from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.registry.rank_slots import (
    ArenaLayout,
    Notify,
    RankSlots,
    RegisteredSnapshot,
)
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.service_counters import ServiceCounters
from checkpointing.service.service_lifetime import ServiceSituation
from checkpointing.service.snapshots import Generation, RankSnapshot, newest_common_step

LEFT_S = 3.0  # seconds within which a trainer that is alive connects again
HANDOVER_S = 5.0  # seconds within which a dead trainer's connection ends
REJOIN_S = 30.0  # seconds within which each rank of this node has to join
HURRY_S = 5.0  # seconds of a drain within which a rank has to bring a snapshot that others have


@dataclass(frozen=True)
class LeftoverMemory:
    """What a trainer finds when it joins: the memory that an earlier one has left, if one has."""

    fd: int | None = None  # the caller owns it
    slots: int = 0
    slot_bytes: int = 0
    # offset and length, in bytes, of the newest whole snapshot; None: there is none
    newest: tuple[int, int] | None = None


@dataclass(frozen=True)
class SaveProgress:
    """How far a node's ranks have come."""

    step: int | None  # the newest step that all of them have staged
    durable: int  # the newest committed step; -1: none


@dataclass(frozen=True)
class SnapshotRead:
    """A snapshot that is being read."""

    snapshot: RankSnapshot
    memory: NDArray[np.uint8]  # its slot, shape (slot_bytes,)
    arrived_s: float  # monotonic
    stream: BucketStream | None = None  # the stream by which it comes, if it does not lie in a slot


class SnapshotRegistry:
    """The memory and snapshots of the ranks of a node. Thread-safe."""

    def __init__(self) -> None:
        self.ledger = ServiceCounters()
        self._changed = threading.Condition()
        self._slots_by_rank: dict[int, RankSlots] = {}  # by rank
        self._generation_states: dict[Generation, GenerationState] = {}
        # monotonic time since when a drain is asked for; None: it is not
        self._drained_s: float | None = None
        self._lost_ranks: frozenset[int] = frozenset()
        self._stop_at_s: float | None = None
        self._is_shut = False  # no trainer may join any more
        self._busy_with: GenerationState | None = None  # the generation that the worker saves
        self._was_joined = False
        # whether replicas of other nodes' ranks are held
        self.holds_replicas: Callable[[], bool] = lambda: False
        self._began_s = self._seen_s = self._moved_s = time.monotonic()

    # --- for trainers

    def join(
        self,
        rank: int,
        ranks: frozenset[int],
        generation: Generation,
        notify: Notify,
        connection: int,
    ) -> LeftoverMemory:
        """Connect a trainer to its rank's memory; return what an earlier one has left there.

        Args:
            ranks: all ranks on this node.
            connection: the number of the trainer's connection; later ones have higher numbers.

        Raises:
            ConnectionError: the service is ending, so that another one is needed.
            ServiceError: a later connection serves this rank.
        """
        with self._changed:
            self._await_former_trainer(rank, notify)
            if self._is_shut:
                raise ConnectionError("this service is ending")
            rank_slots = self._slots_by_rank.setdefault(rank, RankSlots(rank, generation))
            if rank_slots.connection > connection:
                raise ServiceError(f"rank {rank} has a newer connection")
            if rank_slots.notify is not None and rank_slots.notify != notify:
                rank_slots.is_contested = rank_slots.arena_layout is not None
                rank_slots.tear("another trainer has joined as its rank")
                rank_slots.notify({"kind": "displaced"})
            if rank_slots.connection < 0 and rank_slots.generation == generation:
                # installed from a peer: the trainer lives and still has what it staged
                rank_slots.clear()
                rank_slots.reached = -1  # the trainer reports this again, and readers wait for it
            if rank_slots.generation != generation:
                rank_slots.reached = -1
            rank_slots.generation, rank_slots.notify, rank_slots.connection = (
                generation,
                notify,
                connection,
            )
            progress = self._generation_states.setdefault(
                generation, GenerationState(generation, ranks)
            )
            progress.joined_s = time.monotonic()
            progress.gone.pop(rank, None)
            self._was_joined = True
            self._changed.notify_all()
            return _leftover_memory(rank_slots)

    def register_arena(self, rank: int, notify: Notify, arena_layout: ArenaLayout) -> None:
        """Set the memory in which the rank's snapshots lie from now on.

        Raises:
            ServiceError: it cannot hold them, or another trainer has this rank.
        """
        arena_layout.check()
        with self._changed:
            rank_slots = self._slots_of(rank, notify)
            for snapshot in rank_slots.register_arena(arena_layout):
                self._dropped(rank_slots, snapshot)
            self._changed.notify_all()

    def claim(self, rank: int, notify: Notify, step: int) -> int | None:
        """Return a slot for the snapshot of `step`; None if none is free now, which counts as
        skipped."""
        with self._changed:
            rank_slots = self._slots_of(rank, notify)
            slot, dropped = rank_slots.claim()
            if slot is None:
                rank_slots.reached = max(rank_slots.reached, step)
                self.ledger.skipped += 1
            else:  # also where the step was skipped before and is tried again
                rank_slots.reached = min(rank_slots.reached, step - 1)
            if dropped is not None:
                self._dropped(rank_slots, dropped)
            self._changed.notify_all()
            return slot

    def awaited(self, rank: int, notify: Notify) -> str:
        """Return what of other ranks the save under way waits for; "" if nothing is known."""
        with self._changed:
            progress = self._generation_states.get(self._slots_of(rank, notify).generation)
            if progress is None or progress.saving is None or not progress.awaited:
                return ""
            return f"the save of step {progress.saving} waits for {progress.awaited}"

    def await_parts(self, generation: Generation, missing: int) -> None:
        """Record that the save under way waits for the parts of `missing` ranks of other nodes; 0:
        it no longer does."""
        with self._changed:
            progress = self._generation_states.get(generation)
            if progress is not None:
                progress.awaited = f"{missing} of the ranks of other nodes" if missing else ""

    def unstaged(self, rank: int, notify: Notify, step: int, skipped: int) -> None:
        """Record that the rank will have no snapshot of `step` or before, except those it has
        staged.

        Args:
            skipped: number of steps that were not staged because the service did not answer.
        """
        with self._changed:
            rank_slots = self._slots_of(rank, notify)
            rank_slots.tear("its trainer has given it up", step)
            rank_slots.reached = max(rank_slots.reached, step)
            self.ledger.skipped += skipped
            self._changed.notify_all()

    def stream(self, rank: int, notify: Notify, snapshot: RankSnapshot) -> BucketStream:
        """Return a stream for a snapshot that will come in the rank's buckets.

        Raises:
            ServiceError: the rank has no buckets, or another trainer has this rank.
        """
        with self._changed:
            arena_layout = self._slots_of(rank, notify).arena_layout
            if arena_layout is None or not arena_layout.buckets:
                raise ServiceError(
                    f"rank {rank} has not registered buckets: send their memory first"
                )
            memory = arena_layout.view(0)
        send = functools.partial(self.notify, snapshot.generation)
        return BucketStream(snapshot, memory, arena_layout.slot_bytes, send)

    def fill(
        self, rank: int, notify: Notify, step: int, number: int, bucket: int, size: int
    ) -> None:
        """Record that a bucket is full with the next part of a snapshot that comes in buckets.

        Raises:
            ServiceError: it cannot be, or nobody reads that snapshot any more.
        """
        with self._changed:
            rank_slots = self._slots_of(rank, notify)
            held = rank_slots.find(rank_slots.generation, step)
        if held is None or held.stream is None:
            raise ServiceError(f"step {step} of rank {rank} is no longer being read")
        held.stream.fill(number, bucket, size)

    def put(
        self, rank: int, notify: Notify, snapshot: RankSnapshot, stream: BucketStream | None = None
    ) -> None:
        """Record that a snapshot is whole in its slot. Repeating it after the connection was lost
        does nothing.

        Args:
            stream: the stream by which it comes instead. None for a snapshot in buckets: it has
                come, to an earlier process of the service.

        Raises:
            ServiceError: it cannot be there, or another trainer has this rank.
        """
        with self._changed:
            rank_slots = self._slots_of(rank, notify)
            rank_slots.check(snapshot)
            progress = self._generation_states.get(snapshot.generation)
            if snapshot.rank != rank or progress is None:
                raise ServiceError(
                    f"rank {rank} cannot stage for rank {snapshot.rank} of generation "
                    f"{snapshot.generation.id}: join as it first"
                )
            before = rank_slots.held[snapshot.slot]
            if before is not None and before.is_of(snapshot.generation, snapshot.step):
                self._repeat_commit(rank_slots, progress, snapshot)
                return
            if before is not None and before.state is SlotState.WAITING:
                self._dropped(rank_slots, before.snapshot)
            if stream is None and rank_slots.is_bucketed:
                stream = BucketStream.gone(
                    snapshot, functools.partial(self.notify, snapshot.generation)
                )
            rank_slots.put(snapshot, _state_of(snapshot.step, progress), stream)
            self._repeat_commit(rank_slots, progress, snapshot)
            self.ledger.staged += 1
            self._moved_s = time.monotonic()
            progress.try_now()
            self._changed.notify_all()

    def install(
        self,
        snapshot: RankSnapshot,
        arena_layout: ArenaLayout,
        older: Sequence[RankSnapshot] = (),
        *,
        replaces_node: bool = False,
    ) -> bool:
        """Hold a snapshot that was received from elsewhere as if a trainer of its rank had left it
        here: it is written to the store, and handed over to the next trainer.

        Args:
            arena_layout: the memory with the snapshot in its slot; used for the rank from now on,
                or closed here.
            older: other snapshots of the same rank and generation that are in the memory too.
            replaces_node: whether this node saves for the ranks of another one.

        Returns:
            Whether it is held: not if a trainer with memory of its own is connected, or if
                something as new is held.

        Raises:
            ServiceError: the memory cannot hold it.
        """
        arena_layout.check()
        for one in (*older, snapshot):
            arena_layout.check_holds(one)
        rank, generation = snapshot.rank, snapshot.generation
        with self._changed:
            rank_slots = self._slots_by_rank.get(rank)
            progress = self._generation_states.get(generation)
            is_late = self._is_shut or (progress is not None and progress.is_over)
            if is_late or (rank_slots is not None and not _is_replaceable(rank_slots, snapshot)):
                arena_layout.arena.close()
                return False
            rank_slots = self._slots_by_rank.setdefault(rank, RankSlots(rank, generation))
            if rank_slots.notify is None:
                rank_slots.generation = generation
            rank_slots.register_arena(arena_layout)
            progress = self._generation_states.setdefault(
                generation, GenerationState(generation, frozenset())
            )
            if replaces_node and rank == 0 and not progress.leads:
                progress.term += 1
            progress.ranks |= {rank}
            progress.gone.setdefault(rank, time.monotonic())
            reached = rank_slots.reached
            for one in (*older, snapshot):
                rank_slots.put(one, _state_of(one.step, progress))
            if rank_slots.generation != generation:
                rank_slots.reached = reached
            self._was_joined = True
            progress.try_now()
            self._changed.notify_all()
            return True

    def hand_back(self, generation: Generation, ranks: frozenset[int]) -> None:
        """Return these ranks to their node, which is there again and saves what was installed
        here."""
        with self._changed:
            progress = self._generation_states.get(generation)
            if progress is None:
                return
            for rank in ranks & progress.ranks:
                rank_slots = self._slots_by_rank.get(rank)
                if rank_slots is not None and (
                    rank_slots.notify is not None or rank_slots.generation != generation
                ):
                    continue
                progress.ranks -= {rank}
                progress.gone.pop(rank, None)
                if rank_slots is not None and all(
                    h.state is not SlotState.WRITING for h in rank_slots.whole()
                ):
                    self._remove(rank_slots)
            self._changed.notify_all()

    def leave(self, rank: int, notify: Notify, *, goodbye: bool) -> None:
        """Disconnect a trainer. Without `goodbye`, what it staged is kept for the next one."""
        with self._changed:
            rank_slots = self._slots_by_rank.get(rank)
            if rank_slots is None or rank_slots.notify != notify:
                return  # another trainer has this rank by now
            rank_slots.notify, self._seen_s = None, time.monotonic()
            progress = self._generation_states[rank_slots.generation]
            progress.gone[rank] = self._seen_s + (0.0 if goodbye else LEFT_S)
            rank_slots.tear("its trainer has ended")
            if goodbye or not any(rank_slots.whole()):
                self._remove(rank_slots)
            self._changed.notify_all()

    def resume(self, generation: Generation) -> None:
        """Record that the generation continues from what it has restored. What earlier generations
        left, and is not being written, is dropped once none of their trainers is connected."""
        with self._changed:
            here = {
                rank_slots.generation
                for rank_slots in self._slots_by_rank.values()
                if rank_slots.notify
            }
            for progress in self._generation_states.values():
                progress.is_over |= progress.generation not in here
            for rank_slots in list(self._slots_by_rank.values()):
                for held in list(rank_slots.whole()):
                    self._forget_if_over(rank_slots, held)
                is_held = any(held.state is SlotState.WRITING for held in rank_slots.whole())
                if (
                    rank_slots.generation != generation
                    and rank_slots.notify is None
                    and not is_held
                ):
                    self._remove(rank_slots)
            self._changed.notify_all()

    def snapshots(self) -> list[tuple[RankSnapshot, SlotState]]:
        """Return all snapshots that are whole here and can be handed over."""
        with self._changed:
            all_slots = [
                rank_slots
                for rank_slots in self._slots_by_rank.values()
                if not rank_slots.is_contested
            ]
            found = [
                held
                for rank_slots in all_slots
                for held in rank_slots.whole()
                if not is_torn(held.stream)
            ]
            return [(held.snapshot, held.state) for held in found]

    def notify(
        self, generation: Generation, kind: str, *, rank: int | None = None, **fields: Any
    ) -> None:
        """Send a message to the trainers of a generation, or to the one of `rank`."""
        with self._changed:
            if (
                kind == "committed"
                and (progress := self._generation_states.get(generation)) is not None
            ):
                progress.committed = fields
            for rank_slots in self._slots_by_rank.values():
                if (
                    rank_slots.generation == generation
                    and rank_slots.notify
                    and rank in (None, rank_slots.rank)
                ):
                    rank_slots.notify({"kind": kind, **fields})

    # --- under the lock

    # --- for the spool on the node's own disk

    def not_durable(self) -> list[RegisteredSnapshot]:
        """Return all snapshots that are whole and, as far as this node knows, in memory alone."""
        with self._changed:
            held = [
                held for rank_slots in self._slots_by_rank.values() for held in rank_slots.whole()
            ]
            unsaved = [one for one in held if one.state in (SlotState.WAITING, SlotState.WRITING)]
            return [one for one in unsaved if one.stream is None]

    @contextmanager
    def peeking(
        self, snapshot: RankSnapshot
    ) -> Iterator[tuple[ArenaLayout, NDArray[np.uint8]] | None]:
        """Yield the memory of a snapshot and its slot, which is not overwritten while the block
        runs; None if the snapshot is gone or durable by now."""
        with self._changed:
            found = self._find(snapshot.generation, snapshot.rank, snapshot.step)
            there, end = None, nothing
            is_unsaved = found is not None and found[1].state in (
                SlotState.WAITING,
                SlotState.WRITING,
            )
            if found is not None and is_unsaved and found[1].stream is None:
                rank_slots = found[0]
                memory, end = rank_slots.read(found[1].snapshot.slot)
                assert rank_slots.arena_layout is not None
                there = (rank_slots.arena_layout, memory)
        del found
        try:
            yield there
        finally:
            with self._changed:
                end()
                self._changed.notify_all()

    @contextmanager
    def atomically(self) -> Iterator[None]:
        """Make all that is installed in the block visible together."""
        with self._changed:
            yield

    # --- for replication

    def await_common(
        self, generation: Generation, ranks: frozenset[int], known: SaveProgress, timeout_s: float
    ) -> SaveProgress:
        """Wait up to `timeout_s` until the newest step that all of these ranks have, or the newest
        durable one, differs from `known`; return both."""
        with self._changed:
            now = self._common(generation, ranks)
            if now == known:
                self._changed.wait(timeout_s)
                now = self._common(generation, ranks)
            return now

    def look(
        self, generation: Generation, rank: int, step: int
    ) -> tuple[RankSnapshot, NDArray[np.uint8]] | None:
        """Return a snapshot and its slot, which may be refilled at any time: a caller that
        copies from it has to ask `still` afterwards."""
        with self._changed:
            found = self._find(generation, rank, step)
            if found is None or found[1].stream is not None:
                return None
            rank_slots, held = found
            if rank_slots.is_contested or rank_slots.arena_layout is None:
                return None
            return held.snapshot, rank_slots.arena_layout.view(held.snapshot.slot)

    def still(self, snapshot: RankSnapshot) -> bool:
        """Return whether the slot of a snapshot that `look` has returned still holds it."""
        with self._changed:
            found = self._find(snapshot.generation, snapshot.rank, snapshot.step)
            return found is not None and found[1].snapshot is snapshot and not found[0].is_contested

    # --- under the lock

    # --- for the service's process

    def drain(self, seconds: float) -> float:
        """Limit the time to write what is held to `seconds`; return the monotonic time at which it
        ends."""
        with self._changed:
            now_s = time.monotonic()
            self._is_shut = True
            self._drained_s = now_s if self._drained_s is None else self._drained_s
            self._stop_at_s = now_s + seconds
            self.try_again()
            return self._stop_at_s

    def over(self) -> bool:
        """Return whether no time is left."""
        return self._stop_at_s is not None and time.monotonic() >= self._stop_at_s

    def gives_up(self, generation: Generation) -> bool:
        """Return whether to stop waiting for other nodes in a save of this generation."""
        with self._changed:
            progress = self._generation_states.get(generation)
            return self.over() or progress is None or progress.is_over

    @property
    def lost_ranks(self) -> frozenset[int]:
        """The ranks of other nodes that are gone with all that they had in memory."""
        return self._lost_ranks

    def set_lost_ranks(self, ranks: frozenset[int]) -> None:
        """Record these as the lost ranks. What waits for others looks at that now, as a node
        without a supervisor holds its job up meanwhile."""
        with self._changed:
            self._lost_ranks = ranks
            for progress in self._generation_states.values():
                progress.due_s = 0.0
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Block for so long, or until other ranks are lost."""
        with self._changed:
            before = self._lost_ranks
            self._changed.wait_for(lambda: self._lost_ranks != before, seconds)

    @property
    def stop_at_s(self) -> float | None:
        """The monotonic time at which a drain ends; None if there is none."""
        return self._stop_at_s

    @property
    def is_draining(self) -> bool:
        return self._drained_s is not None

    def end_if(self, decide: Callable[[ServiceSituation], str | None]) -> str | None:
        """Return why to end now, as `decide` says; from then on no trainer can join."""
        with self._changed:
            why = decide(self._situation())
            self._is_shut |= why is not None
            return why

    def is_idle(self) -> bool:
        """Return whether nothing is being saved or waits to be."""
        with self._changed:
            return self._busy_with is None and not any(
                map(self.wanted, self._generation_states.values())
            )

    def unsaved(self) -> dict[int, list[int]]:
        """Return the steps that are in memory alone, with their ranks."""
        with self._changed:
            found: dict[int, list[int]] = {}
            for rank, rank_slots in sorted(self._slots_by_rank.items()):
                for held in rank_slots.whole():
                    if held.state in (SlotState.WAITING, SlotState.WRITING):
                        found.setdefault(held.snapshot.step, []).append(rank)
            return found

    def rest(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` until the worker is idle; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._busy_with is None, timeout_s)

    def try_again(self) -> None:
        """Retry immediately what failed before."""
        with self._changed:
            for progress in self._generation_states.values():
                progress.try_now()
            self._changed.notify_all()

    def look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def moved(self) -> None:
        """Record that something was saved."""
        self._moved_s = time.monotonic()

    def alone_s(self) -> float:
        """Return the seconds since a trainer was connected."""
        with self._changed:
            return time.monotonic() - self._seen_s if self._is_alone() else 0.0

    def status(self) -> dict[str, Any]:
        """Return plain data: the memory of each rank, what waits and for how long."""
        with self._changed:
            held = [
                held for rank_slots in self._slots_by_rank.values() for held in rank_slots.whole()
            ]
            unsaved = [h for h in held if h.state in (SlotState.WAITING, SlotState.WRITING)]
            created = [h.snapshot.created for h in unsaved]
            waiting = {h.snapshot.step for h in unsaved if h.state is SlotState.WAITING}
            return {
                "ranks": [
                    rank_slots.status() for _, rank_slots in sorted(self._slots_by_rank.items())
                ],
                "writing": self._busy_with.saving if self._busy_with else None,
                "waiting": sorted(waiting),
                "lag_s": max(0.0, time.time() - min(created)) if created else 0.0,
                "draining": self.is_draining,
            }

    # --- for replication

    def is_deserted(self, ranks: frozenset[int]) -> bool:
        """Return whether the trainers of these ranks have said goodbye, and nothing is left to
        do."""
        with self._changed:
            return self._was_joined and not ranks & self._slots_by_rank.keys() and self.is_idle()

    # --- for the save worker

    def next_generation(self) -> GenerationState | None:
        """Wait for and return the generation that has something to save, the youngest first.
        Returns None once the time is over or, in a drain, when nothing is left to do and no trainer
        is connected that could bring more."""
        with self._changed:
            self._busy_with = None
            self._changed.notify_all()
            while not self.over():
                now_s = time.monotonic()
                is_draining = self._stop_at_s is not None
                ready = [
                    progress
                    for progress in self._generation_states.values()
                    if self.wanted(progress)
                    or (self._must_report_missing(progress) and not is_draining)
                ]
                if due := [progress for progress in ready if progress.due_s <= now_s]:
                    self._busy_with = max(due, key=lambda progress: progress.joined_s)
                    return self._busy_with
                if self._stop_at_s is not None and not ready and self._is_alone():
                    return None
                times_s = [progress.due_s for progress in ready]
                if self._stop_at_s is not None:
                    times_s.append(self._stop_at_s)
                self._changed.wait(max(0.0, min(times_s) - now_s) if times_s else None)
        return None

    def wanted(self, progress: GenerationState) -> list[int]:
        """Return the steps that wait to be saved, oldest first; on the leader, those that rank 0
        has."""
        with self._changed:
            all_slots = [s for r, s in self._slots_by_rank.items() if r == 0 or not progress.leads]
            return sorted(
                {
                    step
                    for rank_slots in all_slots
                    for step in rank_slots.waiting(progress.generation)
                }
            )

    def is_awaited(self, progress: GenerationState, step: int) -> bool:
        """Return whether any rank here waits for a step to be saved, not only rank 0, which may
        come later."""
        with self._changed:
            return any(step in s.waiting(progress.generation) for s in self._slots_by_rank.values())

    @contextmanager
    def reading(
        self, generation: Generation, rank: int, step: int
    ) -> Iterator[SnapshotRead | None]:
        """Yield the rank's snapshot of `step`, not overwritten while the block runs. Waits for it
        as long as it may come; yields None if it cannot."""
        with self._changed:
            progress = self._generation_states.get(generation)
            while (found := self._find(generation, rank, step)) is None:
                if self.over() or not self._may_come(generation, rank, step):
                    break
                if progress is not None:
                    progress.awaited = f"rank {rank}"
                self._changed.wait(0.5)
            if progress is not None:
                progress.awaited = ""
            taken, end = self._take(*found) if found is not None else (None, nothing)
        del found
        try:
            yield taken
        finally:
            with self._changed:
                end()
                self._changed.notify_all()

    def ranks_of(self, generation: Generation) -> frozenset[int]:
        """Return the ranks for which this node writes; more than its own where another node is
        lost."""
        with self._changed:
            progress = self._generation_states.get(generation)
            return progress.ranks if progress is not None else frozenset()

    def begin(self, progress: GenerationState, step: int) -> None:
        """Record that a step is being saved: the snapshots of it that this node's ranks have, or
        bring now, are kept."""
        with self._changed:
            progress.saving = step
            for rank_slots in self._slots_by_rank.values():
                rank_slots.set_state(progress.generation, step, SlotState.WRITING)

    def set_state(
        self, progress: GenerationState, step: int, state: SlotState, why: str = "it was not saved"
    ) -> None:
        """Set the outcome of a step's snapshots that were being written.

        Args:
            why: sent to the trainer of a snapshot that comes in buckets and is not read on.
        """
        with self._changed:
            if progress.saving == step:
                progress.saving = None
            for rank_slots in list(self._slots_by_rank.values()):
                rank_slots.set_state(progress.generation, step, state, why)
                for held in list(rank_slots.whole()):
                    self._forget_if_over(rank_slots, held)
            self._changed.notify_all()

    def note(self, progress: GenerationState, **committed: Any) -> None:
        """Record what is reported of a commit to a trainer that reports its snapshot of that step
        later."""
        with self._changed:
            progress.committed = committed

    def settled(self, progress: GenerationState, step: int) -> None:
        """Record that a step is committed: older snapshots that wait are dropped."""
        with self._changed:
            progress.settled = max(progress.settled, step)
            progress.try_now()
            self._moved_s = time.monotonic()
            self.set_state(progress, step, SlotState.DURABLE)
            for rank_slots in self._slots_by_rank.values():
                for older in rank_slots.waiting(progress.generation):
                    held = rank_slots.find(progress.generation, older)
                    if older < step and held is not None:
                        rank_slots.forget(progress.generation, older)
                        self._dropped(rank_slots, held.snapshot)
            self._changed.notify_all()

    def lose(self, progress: GenerationState) -> list[int]:
        """Give up everything that waits of a generation, because it cannot be saved any more;
        return its steps."""
        with self._changed:
            steps = {
                s
                for rank_slots in self._slots_by_rank.values()
                for s in rank_slots.waiting(progress.generation)
            }
            for step in steps:
                self.set_state(progress, step, SlotState.LOST)
            return sorted(steps)

    def later(self, when: Callable[[], None]) -> None:
        """Have a generation note, under the lock, when its save is tried again."""
        with self._changed:
            when()

    def failed(self, progress: GenerationState, step: int | None, error: str) -> None:
        with self._changed:
            self.ledger.failed += 1
            self.ledger.error = error
        self.notify(progress.generation, "failed", step=step, error=error)

    # --- under the lock

    def _slots_of(self, rank: int, notify: Notify) -> RankSlots:
        rank_slots = self._slots_by_rank.get(rank)
        if rank_slots is None or rank_slots.notify != notify:
            raise ServiceError(
                f"rank {rank} has not joined by this connection, or another trainer of this rank "
                "joined later: end this one"
            )
        return rank_slots

    def _await_former_trainer(self, rank: int, notify: Notify) -> None:
        """Wait until the last messages of a trainer that is gone were handled, before another one
        gets its rank."""

        def is_free() -> bool:
            rank_slots = self._slots_by_rank.get(rank)
            return rank_slots is None or rank_slots.notify is None or rank_slots.notify == notify

        self._changed.wait_for(is_free, HANDOVER_S)

    def _is_alone(self) -> bool:
        return all(rank_slots.notify is None for rank_slots in self._slots_by_rank.values())

    def _forget_if_over(self, rank_slots: RankSlots, held: RegisteredSnapshot) -> None:
        """Drop a snapshot of a generation from which another one has continued, unless it is being
        written."""
        generation = held.snapshot.generation
        progress = self._generation_states.get(generation)
        if held.state is not SlotState.WRITING and (progress is None or progress.is_over):
            rank_slots.forget(generation, held.snapshot.step)
            if (
                rank_slots.notify is None
                and rank_slots.generation == generation
                and not any(rank_slots.whole())
            ):
                self._remove(rank_slots)

    def _remove(self, rank_slots: RankSlots) -> None:
        rank_slots.clear()
        self._slots_by_rank.pop(rank_slots.rank, None)

    def _dropped(self, rank_slots: RankSlots, snapshot: RankSnapshot) -> None:
        self.ledger.dropped += 1
        if rank_slots.notify is not None and rank_slots.generation == snapshot.generation:
            rank_slots.notify({"kind": "dropped", "step": snapshot.step})

    def _repeat_commit(
        self, rank_slots: RankSlots, progress: GenerationState, snapshot: RankSnapshot
    ) -> None:
        """Repeat what a trainer may have missed while it was not connected."""
        step, held = snapshot.step, rank_slots.held[snapshot.slot]
        if rank_slots.notify is not None and held is not None and held.state is SlotState.DURABLE:
            fields = (
                progress.committed if progress.committed.get("step") == step else {"step": step}
            )
            rank_slots.notify({"kind": "committed", **fields})

    def _common(self, generation: Generation, ranks: frozenset[int]) -> SaveProgress:
        held = {
            rank: frozenset(
                held.snapshot.step
                for held in rank_slots.whole()
                if held.snapshot.generation == generation
                and held.state is not SlotState.LOST
                and held.stream is None  # a snapshot that comes in buckets has no slot
            )
            for rank, rank_slots in self._slots_by_rank.items()
            if not rank_slots.is_contested
        }
        progress = self._generation_states.get(generation)
        return SaveProgress(
            newest_common_step(held, ranks), progress.settled if progress is not None else -1
        )

    def _find(
        self, generation: Generation, rank: int, step: int
    ) -> tuple[RankSlots, RegisteredSnapshot] | None:
        rank_slots = self._slots_by_rank.get(rank)
        held = rank_slots.find(generation, step) if rank_slots else None
        return (rank_slots, held) if rank_slots is not None and held is not None else None

    def _must_report_missing(self, progress: GenerationState) -> bool:
        """Return whether another node may wait for a step that a rank of this node does not have,
        and has to learn of that."""
        if progress.leads or progress.is_over:
            return False
        return bool(progress.gone) or any(
            rank_slots.generation == progress.generation
            and rank_slots.reached
            > max([progress.settled, *(held.snapshot.step for held in rank_slots.whole())])
            for rank_slots in self._slots_by_rank.values()
        )

    def _take(
        self, rank_slots: RankSlots, held: RegisteredSnapshot
    ) -> tuple[SnapshotRead, Callable[[], None]]:
        snapshot = held.snapshot
        rank_slots.set_state(snapshot.generation, snapshot.step, SlotState.WRITING)
        memory, end = rank_slots.read(snapshot.slot)
        return SnapshotRead(snapshot, memory, held.arrived_s, held.stream), end

    def _may_come(self, generation: Generation, rank: int, step: int) -> bool:
        """Return whether a rank of this node may still bring a snapshot."""
        now_s, progress = time.monotonic(), self._generation_states[generation]
        if progress.is_over or now_s >= progress.gone.get(rank, now_s + 1):
            return False
        if self._drained_s is not None and now_s - self._drained_s > HURRY_S:
            return False  # a trainer that hangs must not cost what is whole
        rank_slots = self._slots_by_rank.get(rank)
        if rank_slots is None or rank_slots.generation != generation:
            # A restarted service waits until its trainers have connected again.
            youngest = max(self._generation_states.values(), key=lambda other: other.joined_s)
            return progress is youngest and now_s - progress.joined_s <= REJOIN_S
        return rank_slots.notify is None or rank_slots.reached < step

    def _situation(self) -> ServiceSituation:
        now_s = time.monotonic()
        return ServiceSituation(
            was_joined=self._was_joined,
            is_empty=not self._slots_by_rank and not self.holds_replicas(),
            is_alone=self._is_alone(),
            is_idle=self.is_idle(),
            up_s=now_s - self._began_s,
            alone_s=self.alone_s(),
            unmoved_s=now_s - self._moved_s,
        )


def _leftover_memory(rank_slots: RankSlots) -> LeftoverMemory:
    if rank_slots.arena_layout is None or rank_slots.is_contested or rank_slots.is_bucketed:
        return LeftoverMemory()
    arena_layout = rank_slots.arena_layout
    whole = (held.snapshot for held in rank_slots.whole())
    newest = max(whole, key=lambda snapshot: snapshot.step, default=None)
    return LeftoverMemory(
        os.dup(arena_layout.arena.fd),
        arena_layout.slots,
        arena_layout.slot_bytes,
        None if newest is None else (newest.slot * arena_layout.slot_bytes, newest.layout.end),
    )


def _is_replaceable(rank_slots: RankSlots, snapshot: RankSnapshot) -> bool:
    """Return whether a rank without a trainer, or without memory of its trainer, has nothing as
    new."""
    steps = [held.snapshot.step for held in rank_slots.whole()]
    is_free = rank_slots.notify is None or rank_slots.arena_layout is None
    return is_free and all(step < snapshot.step for step in steps)


def _state_of(step: int, progress: GenerationState) -> SlotState:
    """Return the state of a snapshot that comes now; one that is older than a commit dates from
    before a restart."""
    if step == progress.committed.get("step"):
        return SlotState.DURABLE  # also before that commit is recorded as settled
    if step == progress.saving:
        return SlotState.WRITING
    if step <= progress.settled:
        return SlotState.DURABLE if step == progress.settled else SlotState.LOST
    return SlotState.WAITING


def nothing() -> None:
    """Do nothing: there is nothing to release."""
