"""Sends a rank's state to the service through a few buckets, for nodes that are short of memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from torch import Tensor
from torch.optim import Optimizer

from checkpointing.connections import Connections
from checkpointing.errors import CheckpointError, OtherRankError, SaveError, StageError
from checkpointing.ranks.failure_watch import FailureWatch
from checkpointing.ranks.rank_group import first_reasons
from checkpointing.save import process_exit
from checkpointing.save.bucket_flow_control import SERVICE_DIED, BucketFlowControl
from checkpointing.save.save_outcomes import OutcomeListener
from checkpointing.save.save_plan import SavePlan
from checkpointing.save.shipper import Claim, SaveRequest, SnapshotShipper
from checkpointing.service.protocol.messages import dump_snapshot
from checkpointing.service.snapshots import Generation, RankSnapshot, grids
from checkpointing.staging.bucket_stager import BucketStager
from checkpointing.staging.buckets import Bucket
from checkpointing.staging.replica_fingerprints import take_fingerprints
from checkpointing.state.tree import Leaves

logger = logging.getLogger("checkpointing")

STREAMS = 2  # states in memory: the one being sent, and the one before until it is committed


class BucketShipper(SnapshotShipper):
    """Copies states through buckets that the service empties meanwhile.

    The ranks begin and end a save together: a save that fails on one fails on all, and no rank
    continues to train, where it might wait for the others in a collective, before all are done.
    On each node the service reads one rank after the other, so it needs the memory of only one.
    """

    slots = 1  # `needs` counts the memory of all buckets together
    is_bucketed = True

    def __init__(self, connections: Connections, outcomes: OutcomeListener) -> None:
        super().__init__(connections, outcomes)
        self._ranks = connections.ranks
        self._flow = BucketFlowControl(self._rank)
        connections.messages.add(self._flow.handle)
        self._stager = BucketStager(require=lambda size, count: None)  # see `needs`
        self._prepared: SavePlan | None = None
        self._problem: str | None = None  # why there is no memory for the next save
        process_exit.watch(self)

    @property
    def reuses_left_arena(self) -> bool:
        return False

    def needs(self, planned: SavePlan) -> int:
        return self._stager.needs(grids(planned.layout))

    def prepare(
        self, planned: SavePlan, tensors: Mapping[str, Tensor], optimizers: list[Optimizer]
    ) -> None:
        """Provide buckets for states of this plan, once the service no longer reads from the old
        ones.

        Raises:
            StageError: there is not enough memory for a new plan.
        """
        is_new = planned is not self._prepared
        self._problem = self._flow.await_empty()
        if is_new and self._problem is not None:
            self._flow.stop(self._problem)
        if not is_new and (self._problem is not None or not self._flow.is_broken):
            return
        try:
            self._renew(planned, tensors)
        except StageError as error:
            if is_new:
                raise
            self._problem = str(error)  # reported to the other ranks in `claim`

    @property
    def _arenas(self) -> int:
        return self._stager.arenas

    def begin_allocation(self) -> None:
        """Does nothing: buckets are allocated when they are prepared."""

    def _send_arena(self) -> None:
        stager = self._stager
        self._client.register_arena(stager.arena, STREAMS, stager.bucket_bytes, stager.buckets)

    def claim(self, step: int, planned: SavePlan) -> Claim:
        """Reserve the buckets for the state of `step`, of all ranks or of none. Collective."""
        slot = self._claim_together(step, planned)
        return lambda: slot

    def _claim_together(self, step: int, planned: SavePlan) -> int | str:
        """Returns an index, or why no rank can save. Collective."""
        why_not = self._problem
        mine = self._begin_claim(step, planned)() if why_not is None else why_not
        why = self._refusals(step, mine if isinstance(mine, str) else None)
        if why is None:
            return mine
        if isinstance(mine, int):
            self._client.unstaged(step)
        return why

    def ship(
        self,
        request: SaveRequest,
        claim: Claim,
        planned: SavePlan,
        leaves: Leaves,
        generation: Generation,
    ) -> str | None:
        """Copy everything, as fast as the service reads it. Collective; a failure on any rank is
        reported on each, as `fail` does."""
        slot = claim()
        if isinstance(slot, str):
            return slot
        compared = planned.compared(leaves) if request.is_compared else []
        found = self._fingerprints(request, planned, take_fingerprints(compared))
        snapshot = self._snapshot(request, slot, planned, generation, found)
        self._flow.begin(request.step)
        watch = FailureWatch(self._ranks, self._flow.stop)
        why: str | None = "its copy was interrupted"
        try:
            self._stager.stage_bucketed(
                planned.pieces(leaves.tensors), self._begin(snapshot), self._flow.free
            )
            self._client.staged(snapshot)
            why = None
        except CheckpointError as error:
            why = str(error)
        except ConnectionError as error:  # reported before the connection was noticed to be closed
            why = f"{SERVICE_DIED}: {error}"
        finally:
            if why is not None:
                self._flow.stop(why)
            failed = watch.finish(why)
        if failed is None:
            self._emit_staged(request, snapshot.layout.bytes)
        else:
            self.fail(request.step, SaveError(failed))
        return None

    def ship_restored(
        self,
        request: SaveRequest,
        slot: int,
        planned: SavePlan,
        generation: Generation,
        fingerprints: bytes = b"",
    ) -> None:
        """Raises SaveError, since no snapshot is left in buckets."""
        raise SaveError(f"step {request.step} is not in memory: save it again")

    def settle(self) -> None:
        """Does nothing, since nothing is copied while training continues."""

    def finish(self, timeout_s: float) -> None:
        """Make sure, within `timeout_s` seconds, that the service knows of the states that were
        handed over."""
        if not self._client.await_delivery(timeout_s):
            logger.error(
                "the checkpoint service has not restarted: the last staged snapshot may be lost"
            )

    def close(self) -> None:
        process_exit.forget(self)
        self._stager.close()

    def _renew(self, planned: SavePlan, tensors: Mapping[str, Tensor]) -> None:
        if self._flow.is_broken:
            self._stager.close()  # the service may continue to read the memory that it has mapped
        self._prepared = None
        self._stager.prepare(planned.pieces(tensors))
        self._flow.renew(self._stager.buckets)
        self._prepared = planned

    def _refusals(self, step: int, mine: str | None) -> str | None:
        """Returns why the ranks cannot save this step together; None if they can. Collective."""
        try:
            gathered = self._ranks.all_gather((step, mine), self._ranks.control)
        except OtherRankError as error:
            return str(error)
        if any(theirs != step for theirs, _ in gathered):
            return f"ranks save different steps, in order of rank: {[s for s, _ in gathered]}"
        reasons = [
            f"rank {rank}: {why}" for rank, (_, why) in enumerate(gathered) if why is not None
        ]
        return first_reasons(reasons) or None

    def _begin(self, snapshot: RankSnapshot) -> Callable[[Bucket], None]:
        """Announce a state to the service. Returns the function to call with each full bucket of
        it."""
        self._client.ask("stream", snapshot=dump_snapshot(snapshot))

        def send(bucket: Bucket) -> None:
            index = bucket.content.slot
            self._flow.fill(index)
            self._client.ask(
                "fill",
                step=snapshot.step,
                part=bucket.number,
                bucket=index,
                size=bucket.content.bytes,
            )

        return send
