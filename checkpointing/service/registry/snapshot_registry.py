"""Who is here and what they have, and how far each generation has come: what the service's process
and its worker see of the seats."""

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

REJOIN_S = 30.0  # in which each rank of this node has to take its seat
HURRY_S = 5.0  # of a drain, in which a rank has to come with a snapshot that others have


@dataclass(frozen=True)
class SnapshotRead:
    """A snapshot that is being read."""

    snapshot: RankSnapshot
    memory: NDArray[np.uint8]  # its slot, shape (slot_bytes,)
    arrived_s: float  # monotonic
    stream: BucketStream | None = None  # by which it comes, if it does not lie in a slot


class SnapshotRegistry(RegistryView):
    """Thread-safe."""

    # --- for the process

    def drain(self, seconds: float) -> float:
        """Take no more than so long to write what there is; the monotonic time of its end."""
        with self._changed:
            now_s = time.monotonic()
            self._is_shut = True
            self._drained_s = now_s if self._drained_s is None else self._drained_s
            self._stop_at_s = now_s + seconds
            self.try_again()
            return self._stop_at_s

    def over(self) -> bool:
        """Whether there is no time left."""
        return self._stop_at_s is not None and time.monotonic() >= self._stop_at_s

    def gives_up(self, generation: Generation) -> bool:
        """Whether nobody need wait for other nodes any more, for a generation's sake."""
        with self._changed:
            course = self._courses.get(generation)
            return self.over() or course is None or course.is_over

    @property
    def stop_at_s(self) -> float | None:
        """Monotonic time of a drain's end; None if there is none."""
        return self._stop_at_s

    @property
    def is_draining(self) -> bool:
        return self._drained_s is not None

    def end_if(self, decide: Callable[[ServiceSituation], str | None]) -> str | None:
        """Why to end now; from then on nobody can join."""
        with self._changed:
            why = decide(self._situation())
            self._is_shut |= why is not None
            return why

    def is_idle(self) -> bool:
        """Whether nothing is being saved or waits for it."""
        with self._changed:
            return self._busy_with is None and not any(map(self.wanted, self._courses.values()))

    def unsaved(self) -> dict[int, list[int]]:
        """Steps that are in memory alone, with their ranks."""
        with self._changed:
            found: dict[int, list[int]] = {}
            for rank, seat in sorted(self._seats.items()):
                for held in seat.whole():
                    if held.state in (SlotState.WAITING, SlotState.WRITING):
                        found.setdefault(held.snapshot.step, []).append(rank)
            return found

    def rest(self, timeout_s: float) -> bool:
        """Whether the worker has nothing in its hands, at the latest after so long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._busy_with is None, timeout_s)

    def try_again(self) -> None:
        """At once, what failed before."""
        with self._changed:
            for course in self._courses.values():
                course.at_once()
            self._changed.notify_all()

    def look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def moved(self) -> None:
        """Something was saved."""
        self._moved_s = time.monotonic()

    def alone_s(self) -> float:
        """Seconds since a trainer was here."""
        with self._changed:
            return time.monotonic() - self._seen_s if self._is_alone() else 0.0

    def status(self) -> dict[str, Any]:
        """Plain data: each seat, what waits and for how long."""
        with self._changed:
            held = [held for seat in self._seats.values() for held in seat.whole()]
            unsaved = [h for h in held if h.state in (SlotState.WAITING, SlotState.WRITING)]
            created = [h.snapshot.created for h in unsaved]
            waiting = {h.snapshot.step for h in unsaved if h.state is SlotState.WAITING}
            return {
                "ranks": [seat.status() for _, seat in sorted(self._seats.items())],
                "writing": self._busy_with.saving if self._busy_with else None,
                "waiting": sorted(waiting),
                "lag_s": max(0.0, time.time() - min(created)) if created else 0.0,
                "draining": self.is_draining,
            }

    # --- for replication

    def is_deserted(self, ranks: frozenset[int]) -> bool:
        """Whether the trainers of these ranks have said goodbye, and nothing is left to do."""
        with self._changed:
            return self._was_joined and not ranks & self._seats.keys() and self.is_idle()

    # --- for the worker

    def next_course(self) -> GenerationState | None:
        """The generation that has something to save, the youngest first; None once the time is
        over, or, in a drain, nothing is left to do and nobody is here to bring more."""
        with self._changed:
            self._busy_with = None
            self._changed.notify_all()
            while not self.over():
                now_s = time.monotonic()
                is_draining = self._stop_at_s is not None
                ready = [
                    course
                    for course in self._courses.values()
                    if self.wanted(course) or (self._owes(course) and not is_draining)
                ]
                if due := [course for course in ready if course.due_s <= now_s]:
                    self._busy_with = max(due, key=lambda course: course.joined_s)
                    return self._busy_with
                if self._stop_at_s is not None and not ready and self._is_alone():
                    return None
                times_s = [course.due_s for course in ready]
                if self._stop_at_s is not None:
                    times_s.append(self._stop_at_s)
                self._changed.wait(max(0.0, min(times_s) - now_s) if times_s else None)
        return None

    def wanted(self, course: GenerationState) -> list[int]:
        """Steps that wait to be saved, oldest first; on the leading node those that rank 0 has."""
        with self._changed:
            seats = [s for r, s in self._seats.items() if r == 0 or not course.leads]
            return sorted({step for seat in seats for step in seat.waiting(course.generation)})

    def is_awaited(self, course: GenerationState, step: int) -> bool:
        """Whether any rank here waits for it to be saved: not only rank 0, which may come later."""
        with self._changed:
            return any(step in s.waiting(course.generation) for s in self._seats.values())

    @contextmanager
    def reading(
        self, generation: Generation, rank: int, step: int
    ) -> Iterator[SnapshotRead | None]:
        """The rank's snapshot of `step`, not overwritten while the block runs. Waits for it as long
        as it may come; None if it cannot."""
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
        """Those that this node writes for; more of them where another node is lost."""
        with self._changed:
            course = self._courses.get(generation)
            return course.ranks if course is not None else frozenset()

    def begin(self, course: GenerationState, step: int) -> None:
        """A step is being saved: what ranks of this node have of it, or bring now, stays."""
        with self._changed:
            course.saving = step
            for seat in self._seats.values():
                seat.set_state(course.generation, step, SlotState.WRITING)

    def set_state(
        self, course: GenerationState, step: int, state: SlotState, why: str = "it was not saved"
    ) -> None:
        """What became of a step's snapshots that were being written.

        Args:
            why: told where one comes in buckets, and is not read on.
        """
        with self._changed:
            if course.saving == step:
                course.saving = None
            for seat in list(self._seats.values()):
                seat.set_state(course.generation, step, state, why)
                for held in list(seat.whole()):
                    self._forget_if_over(seat, held)
            self._changed.notify_all()

    def note(self, course: GenerationState, **committed: Any) -> None:
        """What a trainer is told of a commit that comes with its snapshot of that later."""
        with self._changed:
            course.committed = committed

    def settled(self, course: GenerationState, step: int) -> None:
        """A step is committed: what waits from before it is not wanted any more."""
        with self._changed:
            course.settled = max(course.settled, step)
            course.at_once()
            self._moved_s = time.monotonic()
            self.set_state(course, step, SlotState.DURABLE)
            for seat in self._seats.values():
                for older in seat.waiting(course.generation):
                    held = seat.find(course.generation, older)
                    if older < step and held is not None:
                        seat.forget(course.generation, older)
                        self._dropped(seat, held.snapshot)
            self._changed.notify_all()

    def lose(self, course: GenerationState) -> list[int]:
        """Nothing that waits of a generation can be saved any more; its steps."""
        with self._changed:
            steps = {s for seat in self._seats.values() for s in seat.waiting(course.generation)}
            for step in steps:
                self.set_state(course, step, SlotState.LOST)
            return sorted(steps)

    def later(self, course: GenerationState, when: Callable[[], None]) -> None:
        with self._changed:
            when()

    def failed(self, course: GenerationState, step: int | None, error: str) -> None:
        with self._changed:
            self.ledger.failed += 1
            self.ledger.error = error
        self.tell(course.generation, "failed", step=step, error=error)

    # --- under the lock

    def _owes(self, course: GenerationState) -> bool:
        """Whether another node may wait for a step that a rank of this one does not bring: it has
        to be told so."""
        if course.leads or course.is_over:
            return False
        return bool(course.gone) or any(
            seat.generation == course.generation
            and seat.reached > max([course.settled, *(held.snapshot.step for held in seat.whole())])
            for seat in self._seats.values()
        )

    def _take(
        self, seat: RankSlots, held: RegisteredSnapshot
    ) -> tuple[SnapshotRead, Callable[[], None]]:
        snapshot = held.snapshot
        seat.set_state(snapshot.generation, snapshot.step, SlotState.WRITING)
        memory, end = seat.read(snapshot.slot)
        return SnapshotRead(snapshot, memory, held.arrived_s, held.stream), end

    def _may_come(self, generation: Generation, rank: int, step: int) -> bool:
        """Whether a rank of this node may still come with a snapshot."""
        now_s, course = time.monotonic(), self._courses[generation]
        if course.is_over or now_s >= course.gone.get(rank, now_s + 1):
            return False
        if self._drained_s is not None and now_s - self._drained_s > HURRY_S:
            return False  # a trainer that hangs must not cost what is whole
        seat = self._seats.get(rank)
        if seat is None or seat.generation != generation:
            # a service that was started again waits for its trainers to come back
            youngest = max(self._courses.values(), key=lambda other: other.joined_s)
            return course is youngest and now_s - course.joined_s <= REJOIN_S
        return seat.notify is None or seat.reached < step

    def _situation(self) -> ServiceSituation:
        now_s = time.monotonic()
        return ServiceSituation(
            was_joined=self._was_joined,
            is_empty=not self._seats and not self.has_lodgers(),
            is_alone=self._is_alone(),
            is_idle=self.is_idle(),
            up_s=now_s - self._began_s,
            alone_s=self.alone_s(),
            unmoved_s=now_s - self._moved_s,
        )
