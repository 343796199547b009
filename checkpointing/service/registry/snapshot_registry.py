"""Which trainers are connected, which snapshots they have, and how far each generation has come, as
the service's process and its save worker see it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from checkpointing.service.registry.bucket_stream import BucketStream
from checkpointing.service.registry.generation_state import GenerationState
from checkpointing.service.registry.rank_slots import RankSlots, RegisteredSnapshot
from checkpointing.service.registry.registry_view import RegistryView, nothing
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.service_lifetime import ServiceSituation
from checkpointing.service.snapshots import Generation, RankSnapshot

REJOIN_S = 30.0  # seconds within which each rank of this node has to join
HURRY_S = 5.0  # seconds of a drain within which a rank has to bring a snapshot that others have


@dataclass(frozen=True)
class SnapshotRead:
    """A snapshot that is being read."""

    snapshot: RankSnapshot
    memory: NDArray[np.uint8]  # its slot, shape (slot_bytes,)
    arrived_s: float  # monotonic
    stream: BucketStream | None = None  # the stream by which it comes, if it does not lie in a slot


class SnapshotRegistry(RegistryView):
    """The registry with what the service's process and the save worker need. Thread-safe."""

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
        """Retry at once what failed before."""
        with self._changed:
            for progress in self._generation_states.values():
                progress.at_once()
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

    def next_course(self) -> GenerationState | None:
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
            while (found := self._find(generation, rank, step)) is None:
                if self.over() or not self._may_come(generation, rank, step):
                    break
                self._changed.wait(0.5)
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
        """Record what a trainer is told of a commit if it reports its snapshot of that step
        later."""
        with self._changed:
            progress.committed = committed

    def settled(self, progress: GenerationState, step: int) -> None:
        """Record that a step is committed: older snapshots that wait are dropped."""
        with self._changed:
            progress.settled = max(progress.settled, step)
            progress.at_once()
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

    def later(self, progress: GenerationState, when: Callable[[], None]) -> None:
        with self._changed:
            when()

    def failed(self, progress: GenerationState, step: int | None, error: str) -> None:
        with self._changed:
            self.ledger.failed += 1
            self.ledger.error = error
        self.tell(progress.generation, "failed", step=step, error=error)

    # --- under the lock

    def _must_report_missing(self, progress: GenerationState) -> bool:
        """Return whether another node may wait for a step that a rank of this node does not have,
        and has to be told so."""
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
            # A restarted service waits for its trainers to come back.
            youngest = max(self._generation_states.values(), key=lambda other: other.joined_s)
            return progress is youngest and now_s - progress.joined_s <= REJOIN_S
        return rank_slots.notify is None or rank_slots.reached < step

    def _situation(self) -> ServiceSituation:
        now_s = time.monotonic()
        return ServiceSituation(
            was_joined=self._was_joined,
            is_empty=not self._slots_by_rank and not self.has_lodgers(),
            is_alone=self._is_alone(),
            is_idle=self.is_idle(),
            up_s=now_s - self._began_s,
            alone_s=self.alone_s(),
            unmoved_s=now_s - self._moved_s,
        )
