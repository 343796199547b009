"""Stages a rank's states in slots of shared memory, each of which holds one snapshot."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from checkpointing.connections import Connections
from checkpointing.save import process_exit
from checkpointing.save.save_outcomes import OutcomeListener
from checkpointing.save.save_plan import SavePlan
from checkpointing.save.shipper import Claim, SaveRequest, SnapshotShipper
from checkpointing.service.snapshots import Generation
from checkpointing.staging.overlapped_copy import Overlap
from checkpointing.staging.replica_fingerprints import take_fingerprints
from checkpointing.staging.stager import Stager
from checkpointing.state.tree import Leaves

logger = logging.getLogger("checkpointing")


class SlotShipper(SnapshotShipper):
    """Copies states into slots, while training continues, and hands them to the service."""

    is_bucketed = False

    def __init__(
        self,
        connections: Connections,
        outcomes: OutcomeListener,
        *,
        slots: int,
        overlap: bool,
    ) -> None:
        """
        Args:
            overlap: copy parameters and optimizer state while training continues.
        """
        super().__init__(connections, outcomes)
        self._overlap = overlap
        self._stager = Stager(slots, require=lambda slot_bytes, slots: None)  # see `needs`
        self._optimizers: list[Optimizer] = []
        self._prepared: SavePlan | None = None
        self._pool = ThreadPoolExecutor(1, "ship")
        self._handover: list[Future[None]] = []
        self.slots = slots
        self._reuse_left_arena()
        process_exit.watch(self)

    @property
    def reuses_left_arena(self) -> bool:
        left = self._client.left
        return left is not None and self._stager.arenas == 1 and left.slots == self.slots

    def needs(self, planned: SavePlan) -> int:
        slot_bytes = planned.slot_bytes
        return slot_bytes if slot_bytes > self._stager.slot_bytes else 0

    def prepare(
        self, planned: SavePlan, tensors: Mapping[str, Tensor], optimizers: list[Optimizer]
    ) -> None:
        if len(optimizers) != len(self._optimizers) or any(
            one is not other for one, other in zip(optimizers, self._optimizers, strict=True)
        ):
            self._stager.watch(optimizers)
            self._optimizers = optimizers
        if planned is not self._prepared:
            self._stager.prepare(planned.pieces(tensors))
            self._prepared = planned

    @property
    def _arenas(self) -> int:
        return self._stager.arenas

    @property
    def unseen(self) -> NDArray[np.uint8] | None:
        is_known = self._sent_layout is not None and self._sent_layout[0] == self._arenas
        if is_known or not self._stager.is_pinned:
            return None
        return self._stager.arena.view(0, self._stager.arena.size)

    def begin_allocation(self) -> None:
        self._stager.begin_allocation()

    def _send_arena(self) -> None:
        stager = self._stager
        self._client.register_arena(stager.arena, stager.slots, stager.slot_bytes)

    def claim(self, step: int, planned: SavePlan) -> Claim:
        return self._begin_claim(step, planned)

    def ship(
        self,
        request: SaveRequest,
        claim: Claim,
        planned: SavePlan,
        leaves: Leaves,
        generation: Generation,
    ) -> str | None:
        """Copy what may change at any time now, and the rest now or while training continues."""
        pieces = planned.pieces(leaves.tensors)
        compared = planned.compared(leaves) if request.is_compared else []
        if self._overlap and planned.later:
            early = len(pieces) - planned.later
            # what has to be read first is read while the service chooses the slot
            sample = self._stager.sample(pieces[:early], pieces[early:], compared)
            slot = claim()
            if isinstance(slot, str):
                return slot
            under_way = self._stager.stage_sampled(sample, slot)
            self._handover = [
                self._pool.submit(
                    self._hand_over_copied, request, slot, planned, generation, under_way
                )
            ]
            return None
        slot = claim()
        if isinstance(slot, str):
            return slot
        prints = take_fingerprints(compared)
        self._stager.stage(pieces, slot)
        found = self._fingerprints(request, planned, prints)
        self.waited_s = 0.0
        self._hand_over(request, slot, planned, generation, found)
        return None

    def ship_restored(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        generation: Generation,
        fingerprints: bytes = b"",
    ) -> None:
        self._client.staged(self._snapshot(request, slot, planned, generation, fingerprints))

    def settle(self) -> None:
        self._stager.settle()
        wait(self._handover)  # the last task is enough: the pool has one thread

    def finish(self, timeout_s: float) -> None:
        self.settle()
        if not self._client.await_delivery(timeout_s):
            logger.error(
                "the checkpoint service has not restarted: the last staged snapshot is lost"
            )

    def close(self) -> None:
        process_exit.forget(self)
        self._stager.close()
        self._pool.shutdown()

    def _reuse_left_arena(self) -> None:
        """Use the memory that an earlier trainer has left; it holds the snapshot from which this
        one may be restored."""
        left = self._client.left
        if left is not None and left.slots == self._stager.slots:
            self._stager.reuse_arena(left.arena, left.slot_bytes)
            self._client.reuse_arena(left)
            self._sent_layout = (self._stager.arenas, "")

    def _hand_over_copied(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        generation: Generation,
        under_way: Overlap,
    ) -> None:
        """Hand over a snapshot once its copy has ended, in another thread than the trainer's."""
        self.waited_s = 0.0
        try:
            under_way.result()
            self.waited_s = under_way.waited_s
            found = self._fingerprints(request, planned, under_way.fingerprints)
        except Exception as error:  # noqa: BLE001 - any error is reported to the thread that waits
            self.fail(request.step, error)
            return
        self._hand_over(request, slot, planned, generation, found)

    def _hand_over(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        generation: Generation,
        fingerprints: bytes,
    ) -> None:
        try:
            snapshot = self._snapshot(request, slot, planned, generation, fingerprints)
            self._client.staged(snapshot)
        except Exception as error:  # noqa: BLE001 - any error is reported to the thread that waits
            self.fail(request.step, error)
            return
        self._emit_staged(request, snapshot.layout.bytes)
