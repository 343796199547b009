"""The registry of a node's ranks, as their trainers use it. It holds the only lock of the service,
and nothing that may take long is done under it."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from checkpointing.service.snapshots import Generation, RankSnapshot

LEFT_S = 3.0  # seconds within which a trainer that lost its connection comes back, if it is alive
HANDOVER_S = 5.0  # seconds within which a dead trainer's connection ends


@dataclass(frozen=True)
class LeftoverMemory:
    """What a trainer finds when it joins: the memory that an earlier one has left, if one has."""

    fd: int | None = None  # the caller owns it
    slots: int = 0
    slot_bytes: int = 0


class RegistrySlots:
    """The memory and snapshots of each rank, by rank. Thread-safe."""

    def __init__(self) -> None:
        self.ledger = ServiceCounters()
        self._changed = threading.Condition()
        self._slots_by_rank: dict[int, RankSlots] = {}  # by rank
        self._generation_states: dict[Generation, GenerationState] = {}
        # monotonic time since when a drain is asked for; None: it is not
        self._drained_s: float | None = None
        self.lost_ranks: frozenset[int] = frozenset()
        """Ranks of other nodes that are gone with all that they had in memory."""
        self._stop_at_s: float | None = None
        self._is_shut = False  # no trainer may join any more
        self._busy_with: GenerationState | None = None  # the generation that the worker saves
        self._was_joined = False
        # whether replicas of other nodes' ranks are held
        self.has_lodgers: Callable[[], bool] = lambda: False
        self._began_s = self._seen_s = self._moved_s = time.monotonic()

    def join(
        self, rank: int, ranks: frozenset[int], generation: Generation, notify: Notify, visit: int
    ) -> LeftoverMemory:
        """Connect a trainer to its rank's memory; return what an earlier one has left there.

        Args:
            ranks: all ranks on this node.
            visit: the number of the trainer's connection; later ones have higher ones.

        Raises:
            ConnectionError: the service is ending, so that another one is needed.
            ServiceError: a later connection serves this rank.
        """
        with self._changed:
            self._await_former_trainer(rank, notify)
            if self._is_shut:
                raise ConnectionError("this service is ending")
            rank_slots = self._slots_by_rank.setdefault(rank, RankSlots(rank, generation))
            if rank_slots.visit > visit:
                raise ServiceError(f"rank {rank} has a newer connection")
            if rank_slots.notify is not None and rank_slots.notify != notify:
                rank_slots.is_contested = rank_slots.furniture is not None
                rank_slots.tear("another trainer has its seat")
                rank_slots.notify({"kind": "displaced"})
            if rank_slots.visit < 0 and rank_slots.generation == generation:
                # installed from a peer: the trainer lives and still has what it staged
                rank_slots.clear()
                rank_slots.reached = -1  # the trainer reports this anew, and readers wait for it
            if rank_slots.generation != generation:
                rank_slots.reached = -1
            rank_slots.generation, rank_slots.notify, rank_slots.visit = generation, notify, visit
            progress = self._generation_states.setdefault(
                generation, GenerationState(generation, ranks)
            )
            progress.joined_s = time.monotonic()
            progress.gone.pop(rank, None)
            self._was_joined = True
            self._changed.notify_all()
            return _leftover_memory(rank_slots)

    def furnish(self, rank: int, notify: Notify, furniture: ArenaLayout) -> None:
        """Set the memory in which the rank's snapshots lie from now on.

        Raises:
            ServiceError: it cannot hold them, or another trainer has this rank.
        """
        furniture.check()
        with self._changed:
            rank_slots = self._slots_of(rank, notify)
            for snapshot in rank_slots.furnish(furniture):
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
            furniture = self._slots_of(rank, notify).furniture
            if furniture is None or not furniture.buckets:
                raise ServiceError(f"rank {rank} has no buckets here: send their memory first")
            memory = furniture.view(0)
        tell = functools.partial(self.tell, snapshot.generation)
        return BucketStream(snapshot, memory, furniture.slot_bytes, tell)

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
            raise ServiceError(f"step {step} of rank {rank} is not being read here any more")
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
                    snapshot, functools.partial(self.tell, snapshot.generation)
                )
            rank_slots.put(snapshot, _state_of(snapshot.step, progress), stream)
            self._repeat_commit(rank_slots, progress, snapshot)
            self.ledger.staged += 1
            self._moved_s = time.monotonic()
            progress.at_once()
            self._changed.notify_all()

    def install(
        self,
        snapshot: RankSnapshot,
        furniture: ArenaLayout,
        older: Sequence[RankSnapshot] = (),
        *,
        is_heir: bool = False,
    ) -> bool:
        """Hold a snapshot that was received from elsewhere as if a trainer of its rank had left it
        here: it is written to the store, and handed over to the next trainer.

        Args:
            furniture: the memory with the snapshot in its slot; used for the rank from now on, or
                closed here.
            older: other snapshots of the same rank and generation that are in the memory too.
            is_heir: this node saves for the ranks of another one.

        Returns:
            Whether it is held: not if a trainer with memory of its own is connected, or if
                something as new is held.

        Raises:
            ServiceError: the memory cannot hold it.
        """
        furniture.check()
        for one in (*older, snapshot):
            furniture.check_holds(one)
        rank, generation = snapshot.rank, snapshot.generation
        with self._changed:
            rank_slots = self._slots_by_rank.get(rank)
            progress = self._generation_states.get(generation)
            is_late = self._is_shut or (progress is not None and progress.is_over)
            if is_late or (rank_slots is not None and not _is_replaceable(rank_slots, snapshot)):
                furniture.arena.close()
                return False
            rank_slots = self._slots_by_rank.setdefault(rank, RankSlots(rank, generation))
            if rank_slots.notify is None:
                rank_slots.generation = generation
            rank_slots.furnish(furniture)
            progress = self._generation_states.setdefault(
                generation, GenerationState(generation, frozenset())
            )
            if is_heir and rank == 0 and not progress.leads:
                progress.term += 1
            progress.ranks |= {rank}
            progress.gone.setdefault(rank, time.monotonic())
            reached = rank_slots.reached
            for one in (*older, snapshot):
                rank_slots.put(one, _state_of(one.step, progress))
            if rank_slots.generation != generation:
                rank_slots.reached = reached
            self._was_joined = True
            progress.at_once()
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
            rank_slots.tear("its trainer is gone")
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

    def tell(
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

    def _slots_of(self, rank: int, notify: Notify) -> RankSlots:
        rank_slots = self._slots_by_rank.get(rank)
        if rank_slots is None or rank_slots.notify != notify:
            raise ServiceError(
                f"rank {rank} has not joined by this connection, or another trainer of this rank "
                "came after it: end this one"
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
        """Drop a snapshot of a generation that another one has continued from, unless it is being
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


def _leftover_memory(rank_slots: RankSlots) -> LeftoverMemory:
    if rank_slots.furniture is None or rank_slots.is_contested or rank_slots.is_bucketed:
        return LeftoverMemory()
    furniture = rank_slots.furniture
    return LeftoverMemory(os.dup(furniture.arena.fd), furniture.slots, furniture.slot_bytes)


def _is_replaceable(rank_slots: RankSlots, snapshot: RankSnapshot) -> bool:
    """Return whether a rank without a trainer, or without memory of its trainer, has nothing as
    new."""
    steps = [held.snapshot.step for held in rank_slots.whole()]
    is_free = rank_slots.notify is None or rank_slots.furniture is None
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
