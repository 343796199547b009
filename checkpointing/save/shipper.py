"""Copies a rank's state into its node's shared memory and hands it to the service."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from checkpointing.errors import ServiceError
from checkpointing.events import Events
from checkpointing.format.replica_differences import NOT_TAKEN, to_bytes
from checkpointing.format.values.json_values import Json
from checkpointing.save import process_exit
from checkpointing.save.save_outcomes import OutcomeListener, SaveStatus
from checkpointing.save.save_plan import SavePlan
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.snapshots import Generation, RankSnapshot
from checkpointing.staging.overlapped_copy import Overlap
from checkpointing.staging.stager import Stager, take_fingerprints
from checkpointing.state.tree import Leaves

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class SaveRequest:
    """The arguments of one call of `save`."""

    step: int
    values: Mapping[str, Json]
    metrics: Mapping[str, float]
    created: float  # Unix time, seconds
    started_s: float  # monotonic
    deadline_s: float | None
    is_compared: bool = False  # whether replicas are compared at this save


class BaseShipper(ABC):
    """What all ways of handing a state to the service have in common."""

    def __init__(
        self, client: ServiceClient, rank: int, outcomes: OutcomeListener, events: Events
    ) -> None:
        self._client, self._rank = client, rank
        self._outcomes, self._events = outcomes, events
        # number of the arena and layout that the service knows
        self._sent_layout: tuple[int, str] | None = None
        self.waited_s = 0.0  # seconds that optimizers waited for the last copy

    @property
    @abstractmethod
    def _arenas(self) -> int:
        """The number of the present arena, counted from 1."""

    @abstractmethod
    def _send_arena(self) -> None:
        """Send the service the file descriptor of the present memory."""

    @property
    def unseen(self) -> NDArray[np.uint8] | None:
        """Returns memory for states that the service does not know of yet, so that nothing reads
        it."""
        return None

    @abstractmethod
    def await_memory(self) -> None:
        """Block until the memory for the next save is allocated.

        Raises:
            StageError: there is not enough.
        """

    def tell(self, planned: SavePlan) -> None:
        """Send the service the layout of states of this plan.

        Raises:
            ServiceError: it does not answer.
        """
        now = (self._arenas, planned.layout.digest)
        if self._sent_layout is None or self._sent_layout[0] != now[0]:
            self._send_arena()
            self._sent_layout = (now[0], "")
        if self._sent_layout != now:
            self._client.layout(planned.layout)
            self._sent_layout = now

    def fail(self, step: int, error: BaseException) -> None:
        """Record and report that this step's save has failed."""
        why = str(error) or type(error).__name__
        logger.error("step %d is not saved: %s", step, why)
        self._client.unstaged(step)
        self._outcomes.end(step, SaveStatus.GONE, why)
        self._events.emit("checkpoint_failed", step=step, error=why)

    def _slot_for(self, step: int, planned: SavePlan) -> int | str:
        """Returns a slot for the snapshot of `step`, or why there is none."""
        try:
            self.tell(planned)
        except ServiceError as error:
            return f"the node's checkpoint service: {error}"
        slot = self._client.claim(step)
        if slot is not None:
            return slot
        if not self._client.is_connected:
            return "the node's checkpoint service is gone, and being started again"
        if self._client.is_silent:
            return "the node's checkpoint service does not answer"
        return "the store is slower than the saves: there is no place for another snapshot"

    def _snapshot(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        generation: Generation,
        fingerprints: bytes = b"",
    ) -> RankSnapshot:
        return RankSnapshot(
            generation,
            self._rank,
            request.step,
            slot,
            planned.layout,
            {name: request.values[name] for name in planned.saved_values},
            request.metrics,
            request.created,
            request.deadline_s,
            fingerprints,
        )

    def _fingerprints(
        self, request: SaveRequest, planned: SavePlan, of_tensors: Sequence[int]
    ) -> bytes:
        """Returns the fingerprints for the part record; none if replicas are not compared at this
        save."""
        if not request.is_compared or not planned.common:
            return b""
        if missing := sum(one == NOT_TAKEN for one in of_tensors):
            logger.info(
                "step %d: %d tensors were written to before their fingerprints were taken, and "
                "are not compared with other ranks' replicas",
                request.step,
                missing,
            )
        return to_bytes(planned.fingerprints(of_tensors, request.values))

    def _tell_staged(self, request: SaveRequest, size: int) -> None:
        self._events.emit(
            "checkpoint_staged",
            step=request.step,
            waited_s=self.waited_s,
            seconds=time.monotonic() - request.started_s,
            bytes=size,
        )


class Shipper(BaseShipper):
    """Copies states into slots and hands them to the service. Used by the training thread only."""

    def __init__(
        self,
        client: ServiceClient,
        rank: int,
        outcomes: OutcomeListener,
        events: Events,
        *,
        slots: int,
        overlap: bool,
    ) -> None:
        """
        Args:
            overlap: copy parameters and optimizer state while training goes on.
        """
        super().__init__(client, rank, outcomes, events)
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
    def has_moved_in(self) -> bool:
        """Whether the slots lie in the memory that an earlier trainer has left."""
        left = self._client.left
        return left is not None and self._stager.arenas == 1 and left.slots == self.slots

    def needs(self, planned: SavePlan) -> int:
        """Returns the slot size in bytes for which `prepare` will take new memory; 0 if the present
        memory is enough."""
        slot_bytes = planned.slot_bytes
        return slot_bytes if slot_bytes > self._stager.slot_bytes else 0

    def prepare(
        self, planned: SavePlan, tensors: Mapping[str, Tensor], optimizers: list[Optimizer]
    ) -> None:
        """Take the memory for states of this plan, and make the steps of these optimizers wait for
        copies.

        Raises:
            StageError: there is not enough.
        """
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
        if self._sent_layout is not None and self._sent_layout[0] == self._arenas:
            return None
        return self._stager.arena.view(0, self._stager.arena.size)

    def await_memory(self) -> None:
        self._stager.await_memory()

    def _send_arena(self) -> None:
        stager = self._stager
        self._client.furnish(stager.arena, stager.slots, stager.slot_bytes)

    def claim(self, step: int, planned: SavePlan) -> int | str:
        """Returns a slot for the snapshot of `step`, or why there is none."""
        return self._slot_for(step, planned)

    def ship(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        leaves: Leaves,
        generation: Generation,
    ) -> None:
        """Copy what may change at any time now, and the rest now or while training goes on."""
        pieces = planned.pieces(leaves.tensors)
        compared = planned.compared(leaves) if request.is_compared else []
        if self._overlap and planned.later:
            early = len(pieces) - planned.later
            under_way = self._stager.stage_overlapped(
                pieces[:early], pieces[early:], slot, compared
            )
            snapshot = self._snapshot(request, slot, planned, generation)
            self._handover = [
                self._pool.submit(self._hand_over, request, snapshot, planned, under_way)
            ]
        else:
            prints = take_fingerprints(compared)
            self._stager.stage(pieces, slot)
            found = self._fingerprints(request, planned, prints)
            self._hand_over(
                request, self._snapshot(request, slot, planned, generation, found), planned, None
            )

    def adopt(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        generation: Generation,
        fingerprints: bytes = b"",
    ) -> None:
        """Hand over a snapshot that already lies in a slot."""
        self._client.staged(self._snapshot(request, slot, planned, generation, fingerprints))

    def settle(self) -> None:
        """Block until no copy is in progress."""
        self._stager.settle()
        wait(self._handover)  # the last task is enough: the pool has one thread

    def finish(self, timeout_s: float) -> None:
        """Complete the copy that is in progress and hand it over, within `timeout_s` seconds."""
        self.settle()
        if not self._client.await_told(timeout_s):
            logger.error("the checkpoint service is not back: what is staged last is lost")

    def close(self) -> None:
        process_exit.forget(self)
        self._stager.close()
        self._pool.shutdown()

    def _reuse_left_arena(self) -> None:
        """Use the memory that an earlier trainer has left; it holds the snapshot from which this
        one may be restored."""
        left = self._client.left
        if left is not None and left.slots == self._stager.slots:
            self._stager.adopt(left.arena, left.slot_bytes)
            self._client.keep(left)
            self._sent_layout = (self._stager.arenas, "")

    def _hand_over(
        self,
        request: SaveRequest,
        snapshot: RankSnapshot,
        planned: SavePlan,
        under_way: Overlap | None,
    ) -> None:
        self.waited_s = 0.0
        try:
            if under_way is not None:
                under_way.result()
                self.waited_s = under_way.waited_s
                found = self._fingerprints(request, planned, under_way.fingerprints)
                snapshot = replace(snapshot, fingerprints=found)
            self._client.staged(snapshot)
        except Exception as error:  # noqa: BLE001 - any error is reported to the thread that waits
            self.fail(request.step, error)
            return
        self._tell_staged(request, snapshot.layout.bytes)
