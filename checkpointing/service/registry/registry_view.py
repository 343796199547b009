"""The registry as the spool on the node's own disk and other nodes see it."""

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

    step: int | None  # the newest step that all of them have staged
    durable: int  # the newest committed step; -1: none


class RegistryView(RegistrySlots):
    """The registry with what the spool and replication need. Thread-safe."""

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
                assert rank_slots.furniture is not None
                there = (rank_slots.furniture, memory)
        del found
        try:
            yield there
        finally:
            with self._changed:
                end()
                self._changed.notify_all()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Make all that is installed in the block visible at once."""
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
        """Return a snapshot and its slot, which may be filled anew at any time: a caller that
        copies from it has to ask `still` afterwards."""
        with self._changed:
            found = self._find(generation, rank, step)
            if found is None or found[1].stream is not None:
                return None
            rank_slots, held = found
            if rank_slots.is_contested or rank_slots.furniture is None:
                return None
            return held.snapshot, rank_slots.furniture.view(held.snapshot.slot)

    def still(self, snapshot: RankSnapshot) -> bool:
        """Return whether the slot of a snapshot that `look` has returned still holds it."""
        with self._changed:
            found = self._find(snapshot.generation, snapshot.rank, snapshot.step)
            return found is not None and found[1].snapshot is snapshot and not found[0].is_contested

    # --- under the lock

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
            newest_complete(held, ranks), progress.settled if progress is not None else -1
        )

    def _find(
        self, generation: Generation, rank: int, step: int
    ) -> tuple[RankSlots, RegisteredSnapshot] | None:
        rank_slots = self._slots_by_rank.get(rank)
        held = rank_slots.find(generation, step) if rank_slots else None
        return (rank_slots, held) if rank_slots is not None and held is not None else None


def nothing() -> None:
    """Do nothing: there is nothing to release."""
