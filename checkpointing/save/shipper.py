"""The interface of the staging modes: how a rank's state gets into shared memory and to its node's
service."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from checkpointing.connections import Connections
from checkpointing.errors import ServiceError
from checkpointing.events import CheckpointFailed, CheckpointStaged
from checkpointing.format.replica_differences import NOT_TAKEN, to_bytes
from checkpointing.format.values.json_values import Json
from checkpointing.save.save_outcomes import OutcomeListener, SaveStatus
from checkpointing.save.save_plan import SavePlan
from checkpointing.service.snapshots import Generation, RankSnapshot
from checkpointing.state.tree import Leaves

logger = logging.getLogger("checkpointing")

Claim: TypeAlias = Callable[[], "int | str"]
"""Waits for the memory that was asked for, and returns the index of its slot, or why there is none.
Whoever does not call it reports the step as failed."""


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
    certified: str = ""  # as of `ManifestHeader`


class SnapshotShipper(ABC):
    """Copies a rank's states into shared memory and hands them to the service, whatever the staging
    mode. Used by the training thread only.

    The calls for one save are, in this order, `prepare`, `claim` and `ship`, or `fail` after an
    error.
    """

    slots: int
    """The number of regions of memory of which `needs` says the size."""
    is_bucketed: ClassVar[bool]
    """Whether states pass through buckets, so that no snapshot stays in memory."""

    def __init__(self, connections: Connections, outcomes: OutcomeListener) -> None:
        self._client, self._rank = connections.client, connections.ranks.rank
        self._outcomes, self._events = outcomes, connections.events
        # number of the arena and layout that the service knows
        self._sent_layout: tuple[int, str] | None = None
        # the same of the layout that it is being sent, and the function that waits for it
        self._begun_layout: tuple[tuple[int, str], Callable[[], None]] | None = None
        self.waited_s = 0.0  # seconds that optimizers waited for the last copy

    @property
    @abstractmethod
    def _arenas(self) -> int:
        """The number of the present arena, counted from 1."""

    @abstractmethod
    def _send_arena(self) -> None:
        """Send the service the file descriptor of the present memory."""

    @property
    @abstractmethod
    def reuses_left_arena(self) -> bool:
        """Whether the slots lie in the arena that an earlier trainer has left, so that what it
        staged is still there."""

    @property
    def unseen(self) -> NDArray[np.uint8] | None:
        """Returns memory for states that devices copy to and from directly, and that the service
        does not know of yet, so that nothing reads it; None if there is none."""
        return None

    @abstractmethod
    def begin_allocation(self) -> None:
        """Allocate the memory that `prepare` has taken in the background from now on. A save waits
        for it; it raises StageError if there is not enough."""

    @abstractmethod
    def needs(self, planned: SavePlan) -> int:
        """Returns the bytes of new memory that `prepare` will take for each of `slots`; 0 if the
        present memory is enough."""

    @abstractmethod
    def prepare(
        self, planned: SavePlan, tensors: Mapping[str, Tensor], optimizers: list[Optimizer]
    ) -> None:
        """Take the memory for states of this plan, and make the steps of these optimizers wait for
        copies of them.

        Raises:
            StageError: there is not enough memory.
        """

    @abstractmethod
    def claim(self, step: int, planned: SavePlan) -> Claim:
        """Ask for memory for the state of `step`; the claim that is returned tells which."""

    @abstractmethod
    def ship(
        self,
        request: SaveRequest,
        claim: Claim,
        planned: SavePlan,
        leaves: Leaves,
        generation: Generation,
    ) -> str | None:
        """Copy a state into the memory that was claimed and hand it over. Returns once everything
        that may change at any time is copied: None, or why the state is not saved, if no memory is
        free for it."""

    @abstractmethod
    def ship_restored(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        generation: Generation,
        fingerprints: bytes = b"",
    ) -> None:
        """Hand over a snapshot that lies in its slot already, because the state was restored from
        there.

        Raises:
            SaveError: no snapshot can lie there, see `reuses_left_arena`.
        """

    @abstractmethod
    def settle(self) -> None:
        """Block until no copy is in progress."""

    @abstractmethod
    def finish(self, timeout_s: float) -> None:
        """Complete the copy that is in progress and hand it over, within `timeout_s` seconds."""

    @abstractmethod
    def close(self) -> None:
        """Release the memory. The service keeps what was handed over."""

    def send_layout(self, planned: SavePlan) -> None:
        """Send the service the layout of states of this plan, and the memory if that is new.

        Raises:
            ServiceError: it does not answer.
        """
        now = (self._arenas, planned.layout.digest)
        if self._sent_layout is None or self._sent_layout[0] != now[0]:
            self._send_arena()
            self._sent_layout = (now[0], "")
        begun, self._begun_layout = self._begun_layout, None
        if self._sent_layout != now:
            if begun is not None and begun[0] == now:
                begun[1]()
            else:
                self._client.layout(planned.layout)
            self._sent_layout = now

    def begin_layout(self, planned: SavePlan) -> None:
        """Send the service the layout of states of this plan without waiting, if it knows the
        memory already; `send_layout` waits then. Raises as that."""
        if self._sent_layout == (self._arenas, ""):
            now = (self._arenas, planned.layout.digest)
            self._begun_layout = now, self._client.begin_layout(planned.layout)

    def fail(self, step: int, error: BaseException) -> None:
        """Record and report that this step's save has failed."""
        why = str(error) or type(error).__name__
        logger.error("step %d is not saved: %s", step, why)
        self._client.unstaged(step)
        self._outcomes.end(step, SaveStatus.GONE, why)
        self._events.emit(CheckpointFailed(step=step, error=why))

    def _begin_claim(self, step: int, planned: SavePlan) -> Claim:
        """Ask the service for a slot for the snapshot of `step`."""
        try:
            self.send_layout(planned)
        except ServiceError as error:
            why = f"the node's checkpoint service: {error}"
            return lambda: why
        return partial(self._finish_claim, step, self._client.begin_claim(step))

    def _finish_claim(self, step: int, claimed: Callable[[], int | None]) -> int | str:
        slot = claimed()
        if slot is not None:
            return slot
        if not self._client.is_connected:
            return "the node's checkpoint service has ended and is being restarted"
        if self._client.is_silent:
            return "the node's checkpoint service does not answer"
        why = "no slot is free for another snapshot"
        if self._client.awaited:
            why += f": {self._client.awaited}; every rank has to call save(), at the same steps"
        else:
            why = f"the store is slower than the saves: {why}"
        if self._rank == 0:
            logger.warning("step %d is not saved: %s", step, why)
        return why

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
            request.certified,
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

    def _emit_staged(self, request: SaveRequest, size: int) -> None:
        self._events.emit(
            CheckpointStaged(
                step=request.step,
                waited_s=self.waited_s,
                seconds=time.monotonic() - request.started_s,
                bytes=size,
            )
        )
