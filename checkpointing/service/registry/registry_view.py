"""What the copies on the node's own disk, and other nodes, see of the seats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from checkpointing.service.registry.rank_slots import ArenaLayout, RankSlots, RegisteredSnapshot
from checkpointing.service.registry.registry_slots import RegistrySlots
from checkpointing.service.registry.slot_choice import SlotState
from checkpointing.service.replication.replication_ring import newest_complete
from checkpointing.service.snapshots import Generation, RankSnapshot


@dataclass(frozen=True)
class SaveProgress:
    """How far a node's ranks have come."""

    step: int | None  # the newest that all of them have staged
    durable: int  # the newest that is committed; -1: none


class RegistryView(RegistrySlots):
    """Thread-safe."""

    # --- for copies on the node's own disk

    def not_durable(self) -> list[RegisteredSnapshot]:
        """All that is whole, and in memory alone as far as this node knows."""
        with self._changed:
            held = [held for seat in self._seats.values() for held in seat.whole()]
            unsaved = [one for one in held if one.state in (SlotState.WAITING, SlotState.WRITING)]
            return [one for one in unsaved if one.stream is None]

    @contextmanager
    def peeking(
        self, snapshot: RankSnapshot
    ) -> Iterator[tuple[ArenaLayout, NDArray[np.uint8]] | None]:
        """Its memory and its slot in it, not overwritten while the block runs; None if it is not
        here any more, or durable by now."""
        with self._changed:
            found = self._find(snapshot.generation, snapshot.rank, snapshot.step)
            there, end = None, nothing
            is_unsaved = found is not None and found[1].state in (
                SlotState.WAITING,
                SlotState.WRITING,
            )
            if found is not None and is_unsaved and found[1].stream is None:
                seat = found[0]
                memory, end = seat.read(found[1].snapshot.slot)
                assert seat.furniture is not None
                there = (seat.furniture, memory)
        del found
        try:
            yield there
        finally:
            with self._changed:
                end()
                self._changed.notify_all()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """What is installed in the block is seen as a whole, or not yet."""
        with self._changed:
            yield

    # --- for replication

    def await_common(
        self, generation: Generation, ranks: frozenset[int], known: SaveProgress, timeout_s: float
    ) -> SaveProgress:
        """The newest step that all of these ranks have, and the newest durable one: as soon as
        something else than what is known, or after so long."""
        with self._changed:
            now = self._common(generation, ranks)
            if now == known:
                self._changed.wait(timeout_s)
                now = self._common(generation, ranks)
            return now

    def look(
        self, generation: Generation, rank: int, step: int
    ) -> tuple[RankSnapshot, NDArray[np.uint8]] | None:
        """A snapshot and its slot, which may be filled anew at any time: who copies from it asks
        `still` afterwards."""
        with self._changed:
            found = self._find(generation, rank, step)
            if found is None or found[1].stream is not None:
                return None
            seat, held = found
            if seat.is_contested or seat.furniture is None:
                return None
            return held.snapshot, seat.furniture.view(held.snapshot.slot)

    def still(self, snapshot: RankSnapshot) -> bool:
        """Whether the slot of what `look` found still holds it."""
        with self._changed:
            found = self._find(snapshot.generation, snapshot.rank, snapshot.step)
            return found is not None and found[1].snapshot is snapshot and not found[0].is_contested

    # --- under the lock

    def _common(self, generation: Generation, ranks: frozenset[int]) -> SaveProgress:
        held = {
            rank: frozenset(
                held.snapshot.step
                for held in seat.whole()
                if held.snapshot.generation == generation
                and held.state is not SlotState.LOST
                and held.stream is None  # what comes in buckets lies nowhere
            )
            for rank, seat in self._seats.items()
            if not seat.is_contested
        }
        course = self._courses.get(generation)
        return SaveProgress(
            newest_complete(held, ranks), course.settled if course is not None else -1
        )

    def _find(
        self, generation: Generation, rank: int, step: int
    ) -> tuple[RankSlots, RegisteredSnapshot] | None:
        seat = self._seats.get(rank)
        held = seat.find(generation, step) if seat else None
        return (seat, held) if seat is not None and held is not None else None


def nothing() -> None:
    """There is nothing to end."""
