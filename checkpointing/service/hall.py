"""Who is here and what they have: the seats of a node's ranks, and how far each generation has
come. The one lock of the service is here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from checkpointing.arena import Arena
from checkpointing.errors import ServiceError
from checkpointing.service.course import REJOIN_S, Course
from checkpointing.service.ledger import Ledger
from checkpointing.service.seats import Notify, Seat
from checkpointing.service.slots import State
from checkpointing.service.snapshots import Generation, Snapshot


class Hall:
    """Thread-safe."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._changed = threading.Condition()
        self._seats: dict[int, Seat] = {}  # by rank
        self._courses: dict[Generation, Course] = {}
        self._stop_at_s: float | None = None  # monotonic; None: nobody has asked

    # --- for trainers

    def join(
        self, rank: int, ranks: frozenset[int], generation: Generation, notify: Notify
    ) -> Seat:
        """A trainer takes its rank's seat, with what an earlier one has left there.

        Args:
            ranks: all that are on this node.
        """
        with self._changed:
            seat = self._seats.setdefault(rank, Seat(rank, generation))
            if seat.generation != generation:
                seat.reached = -1
            seat.generation, seat.notify = generation, notify
            course = self._courses.setdefault(generation, Course(generation, ranks))
            course.joined_s = time.monotonic()
            self._changed.notify_all()
            return seat

    def furnish(self, rank: int, arena: Arena, slots: int, slot_bytes: int) -> None:
        """The rank's snapshots lie in this memory from now on."""
        with self._changed:
            seat = self._seat(rank)
            self._until_unread(seat)
            seat.furnish(arena, slots, slot_bytes)

    def claim(self, rank: int, step: int) -> int | None:
        """A slot for the snapshot of `step`; None, counted as skipped, if there is none now."""
        with self._changed:
            seat = self._seat(rank)
            slot, dropped = seat.claim()
            if slot is None:
                seat.reached = max(seat.reached, step)
                self.ledger.skipped += 1
            if dropped is not None:
                self._dropped(seat, dropped)
            self._changed.notify_all()
            return slot

    def put(self, snapshot: Snapshot) -> None:
        """A snapshot is whole in its slot."""
        with self._changed:
            seat = self._seat(snapshot.rank)
            if not 0 <= snapshot.slot < len(seat.slots):
                raise ServiceError(f"rank {snapshot.rank} has no slot {snapshot.slot}")
            if snapshot.layout.end > seat.slot_bytes:
                raise ServiceError(f"rank {snapshot.rank}: a layout that is larger than its slot")
            if seat.slots[snapshot.slot].state is State.WRITING:
                return  # said a second time, after the connection was lost
            seat.put(snapshot)
            self.ledger.staged += 1
            self._courses[snapshot.generation].at_once()
            self._changed.notify_all()

    def leave(self, rank: int, notify: Notify, *, goodbye: bool) -> None:
        """A trainer is gone. Without a goodbye, what it staged is kept for the next one."""
        with self._changed:
            seat = self._seats.get(rank)
            if seat is None or seat.notify != notify:
                return  # somebody else sits there by now
            seat.notify = None
            if goodbye:
                self._remove(seat)
            self._changed.notify_all()

    def resume(self, generation: Generation) -> None:
        """The generation goes on from what it has restored: what earlier ones left, and is not
        being written, is of no use any more."""
        with self._changed:
            for seat in list(self._seats.values()):
                for old, state in list(seat.held()):
                    if old.generation != generation and state is not State.WRITING:
                        seat.forget(old.generation, old.step)
                if seat.generation != generation and seat.notify is None:
                    self._remove(seat)
            self._changed.notify_all()

    def snapshots(self) -> list[tuple[Snapshot, State]]:
        """All that are whole here."""
        with self._changed:
            return [found for seat in self._seats.values() for found in seat.held()]

    def tell(
        self, generation: Generation, kind: str, *, rank: int | None = None, **fields: Any
    ) -> None:
        """Tell the trainers of a generation, or one of them."""
        with self._changed:
            seats = [s for s in self._seats.values() if s.generation == generation]
            listeners = [s.notify for s in seats if s.notify and rank in (None, s.rank)]
        for notify in listeners:
            notify({"kind": kind, **fields})

    # --- for the process

    def drain(self, seconds: float) -> float:
        """Take no more than so long to write what there is; the monotonic time of its end."""
        with self._changed:
            self._stop_at_s = time.monotonic() + seconds
            for course in self._courses.values():
                course.at_once()
            self._changed.notify_all()
            return self._stop_at_s

    def over(self) -> bool:
        """Whether there is no time left."""
        return self._stop_at_s is not None and time.monotonic() >= self._stop_at_s

    def is_empty(self) -> bool:
        """Whether no trainer sits here, and none has left anything."""
        with self._changed:
            return not self._seats

    def is_alone(self) -> bool:
        """Whether no trainer sits here."""
        with self._changed:
            return all(seat.notify is None for seat in self._seats.values())

    def is_idle(self) -> bool:
        """Whether nothing is written or waits to be."""
        busy = (State.WAITING, State.WRITING)
        return all(state not in busy for _, state in self.snapshots())

    def look_again(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # --- for the worker

    def next_course(self) -> Course | None:
        """The generation that has something to save, the youngest first; None once the time is
        over, or nothing is left to do after `drain`."""
        with self._changed:
            while not self.over():
                now_s = time.monotonic()
                ready = [course for course in self._courses.values() if self.wanted(course)]
                if due := [course for course in ready if course.due_s <= now_s]:
                    return max(due, key=lambda course: course.joined_s)
                if self._stop_at_s is not None and not ready:
                    return None
                times_s = [course.due_s for course in ready]
                if self._stop_at_s is not None:
                    times_s.append(self._stop_at_s)
                self._changed.wait(min(times_s) - now_s if times_s else None)
        return None

    def wanted(self, course: Course) -> list[int]:
        """Steps that wait to be saved, oldest first; on the leading node those that rank 0 has."""
        with self._changed:
            seats = [s for r, s in self._seats.items() if r == 0 or not course.leads]
            return sorted({step for seat in seats for step in seat.waiting(course.generation)})

    def take(self, generation: Generation, rank: int, step: int) -> tuple[Snapshot, Seat] | None:
        """The rank's snapshot of `step`, being written from now on. Waits for it as long as it may
        come; None if it cannot."""
        with self._changed:
            while True:
                seat = self._seats.get(rank)
                snapshot = seat.find(generation, step) if seat else None
                if seat is not None and snapshot is not None:
                    seat.set_state(generation, step, State.WRITING)
                    return snapshot, seat
                if self.over() or self._cannot_come(generation, seat, step):
                    return None
                self._changed.wait(1.0)

    def set_state(self, course: Course, step: int, state: State) -> None:
        """What became of a step's snapshots that were being written."""
        with self._changed:
            for seat in self._seats.values():
                seat.set_state(course.generation, step, state)
            self._changed.notify_all()

    def settled(self, course: Course, step: int) -> None:
        """A step is committed: what waits from before it is not wanted any more."""
        with self._changed:
            course.settled = max(course.settled, step)
            course.at_once()
            for seat in self._seats.values():
                seat.set_state(course.generation, step, State.DURABLE)
                for older in seat.waiting(course.generation):
                    if older < step and (snapshot := seat.find(course.generation, older)):
                        seat.forget(course.generation, older)
                        self._dropped(seat, snapshot)
            self._changed.notify_all()

    def later(self, course: Course, when: Callable[[], None]) -> None:
        with self._changed:
            when()

    def failed(self, course: Course, step: int | None, error: str) -> None:
        self.ledger.failed += 1
        self.ledger.error = error
        self.tell(course.generation, "failed", step=step, error=error)

    def status(self) -> dict[str, Any]:
        """Plain data: each seat, what waits and for how long."""
        with self._changed:
            waiting = [s for s, state in self.snapshots() if state is State.WAITING]
            return {
                "ranks": [seat.status() for _, seat in sorted(self._seats.items())],
                "waiting": sorted({snapshot.step for snapshot in waiting}),
                "lag_s": max((time.time() - s.created for s in waiting), default=0.0),
                "draining": self._stop_at_s is not None,
            }

    # --- under the lock

    def _seat(self, rank: int) -> Seat:
        seat = self._seats.get(rank)
        if seat is None:
            raise ServiceError(f"rank {rank} has not joined")
        return seat

    def _cannot_come(self, generation: Generation, seat: Seat | None, step: int) -> bool:
        """Whether a rank of this node cannot come with a snapshot any more."""
        if seat is not None and seat.generation == generation and seat.notify is not None:
            return seat.reached >= step
        # a service that was started again waits for its trainers to come back
        return time.monotonic() - self._courses[generation].joined_s > REJOIN_S

    def _remove(self, seat: Seat) -> None:
        self._until_unread(seat)
        seat.clear()
        self._seats.pop(seat.rank, None)

    def _dropped(self, seat: Seat, snapshot: Snapshot) -> None:
        self.ledger.dropped += 1
        if seat.notify is not None and seat.generation == snapshot.generation:
            seat.notify({"kind": "dropped", "step": snapshot.step})

    def _until_unread(self, seat: Seat) -> None:
        """Nothing is read from the seat's memory any more."""
        self._changed.wait_for(
            lambda: all(state is not State.WRITING for _, state in seat.held()) or self.over()
        )
