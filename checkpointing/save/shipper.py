"""One rank's way of a state into its node's shared memory, and on to the service."""

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
    """What one call of save() asks for."""

    step: int
    values: Mapping[str, Json]
    metrics: Mapping[str, float]
    created: float  # Unix time, seconds
    started_s: float  # monotonic
    deadline_s: float | None
    is_compared: bool = False  # with what other ranks hold of the same


class BaseShipper(ABC):
    """What all ways of handing a state to the service have in common."""

    def __init__(
        self, client: ServiceClient, rank: int, outcomes: OutcomeListener, events: Events
    ) -> None:
        self._client, self._rank = client, rank
        self._outcomes, self._events = outcomes, events
        self._told: tuple[int, str] | None = None  # arena's number and layout that it knows of
        self.waited_s = 0.0  # seconds that optimizers waited for the last copy

    @property
    @abstractmethod
    def _arenas(self) -> int:
        """Made so far: the number of the present one."""

    @abstractmethod
    def _furnish(self) -> None:
        """Send the service the present memory."""

    @property
    def unseen(self) -> NDArray[np.uint8] | None:
        """Memory for states that the service does not know of yet, so that nobody reads it."""
        return None

    @abstractmethod
    def await_memory(self) -> None:
        """Return when the memory for the next save is there.

        Raises:
            StageError: there is not enough.
        """

    def tell(self, planned: SavePlan) -> None:
        """Tell the service where states of this plan lie, or come through, and how.

        Raises:
            ServiceError: it does not answer.
        """
        now = (self._arenas, planned.layout.digest)
        if self._told is None or self._told[0] != now[0]:
            self._furnish()
            self._told = (now[0], "")
        if self._told != now:
            self._client.layout(planned.layout)
            self._told = now

    def fail(self, step: int, error: BaseException) -> None:
        """Nothing will come of this step's save."""
        why = str(error) or type(error).__name__
        logger.error("step %d is not saved: %s", step, why)
        self._client.unstaged(step)
        self._outcomes.end(step, SaveStatus.GONE, why)
        self._events.emit("checkpoint_failed", step=step, error=why)

    def _slot_for(self, step: int, planned: SavePlan) -> int | str:
        """A slot for the snapshot of `step`, or why there is none."""
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
        """What is compared, as in a part record; none if this save is not."""
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
    """Copies states into slots and hands them to the service. For the thread that trains."""

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
        self._handing: list[Future[None]] = []
        self.slots = slots
        self._move_in()
        process_exit.watch(self)

    @property
    def has_moved_in(self) -> bool:
        """Whether slots lie in the memory that an earlier trainer has left."""
        left = self._client.left
        return left is not None and self._stager.arenas == 1 and left.slots == self.slots

    def needs(self, planned: SavePlan) -> int:
        """Bytes of a slot that `prepare` will take new memory for; 0 if what there is will do."""
        slot_bytes = planned.slot_bytes
        return slot_bytes if slot_bytes > self._stager.slot_bytes else 0

    def prepare(
        self, planned: SavePlan, tensors: Mapping[str, Tensor], optimizers: list[Optimizer]
    ) -> None:
        """Take the memory for states of this plan, and let the steps of these optimizers wait.

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
        if self._told is not None and self._told[0] == self._arenas:
            return None
        return self._stager.arena.view(0, self._stager.arena.size)

    def await_memory(self) -> None:
        self._stager.await_memory()

    def _furnish(self) -> None:
        stager = self._stager
        self._client.furnish(stager.arena, stager.slots, stager.slot_bytes)

    def claim(self, step: int, planned: SavePlan) -> int | str:
        """A slot for the snapshot of `step`, or why there is none."""
        return self._slot_for(step, planned)

    def ship(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        leaves: Leaves,
        generation: Generation,
    ) -> None:
        """Copy what may change at once, the rest at once too or while training goes on."""
        pieces = planned.pieces(leaves.tensors)
        compared = planned.compared(leaves) if request.is_compared else []
        if self._overlap and planned.later:
            early = len(pieces) - planned.later
            under_way = self._stager.stage_overlapped(
                pieces[:early], pieces[early:], slot, compared
            )
            snapshot = self._snapshot(request, slot, planned, generation)
            self._handing = [
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
        """Hand over what lies in a slot already."""
        self._client.staged(self._snapshot(request, slot, planned, generation, fingerprints))

    def settle(self) -> None:
        """Return when nothing is being copied any more."""
        self._stager.settle()
        wait(self._handing)  # the last: the pool has one thread

    def finish(self, timeout_s: float) -> None:
        """Copy to its end what is being copied, and hand it over, in no more than so long."""
        self.settle()
        if not self._client.await_told(timeout_s):
            logger.error("the checkpoint service is not back: what is staged last is lost")

    def close(self) -> None:
        process_exit.forget(self)
        self._stager.close()
        self._pool.shutdown()

    def _move_in(self) -> None:
        """Into the memory that an earlier trainer has left, which has the snapshot in it that this
        one may be restored from."""
        left = self._client.left
        if left is not None and left.slots == self._stager.slots:
            self._stager.adopt(left.arena, left.slot_bytes)
            self._client.keep(left)
            self._told = (self._stager.arenas, "")

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
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for it must hear of it
            self.fail(request.step, error)
            return
        self._tell_staged(request, snapshot.layout.bytes)
