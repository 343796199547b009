"""Restoring from the memory of the nodes: snapshots that trainers left in the services there."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from checkpointing.errors import ServiceError
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.save.save_plan import SavePlan
from checkpointing.service.client.held_snapshots import REPLICA, HeldSnapshot
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.snapshots import Generation
from checkpointing.staging.arena import Arena
from checkpointing.staging.tensor_copy import cells_of, copy, place_for

logger = logging.getLogger("checkpointing")

POLL_S = 0.5
# without any change, after which a snapshot that is to become durable is given up: all parts of it
# are in memory, or some that are not seen may be, on nodes that the job has left
STUCK_S, UNSEEN_S = 600.0, 30.0
TOLD_EVERY_S = 30.0


@dataclass(frozen=True)
class CompleteSnapshot:
    """A snapshot of which all ranks of its generation have their part in memory somewhere."""

    step: int
    generation: Generation


def newest_complete(found: Iterable[HeldSnapshot]) -> CompleteSnapshot | None:
    """The newest snapshot that is complete over its generation's ranks; a pure function."""
    holders: dict[CompleteSnapshot, set[int]] = defaultdict(set)
    for one in found:
        holders[CompleteSnapshot(one.step, one.generation)].add(one.rank)
    complete = [w for w, ranks in holders.items() if len(ranks) == w.generation.world_size]
    return max(complete, key=lambda whole: whole.step, default=None)


def newest_part(found: Iterable[HeldSnapshot]) -> CompleteSnapshot | None:
    """The newest snapshot that is complete, or may be: of which ranks are missing that nothing was
    found of, so that they may be on other nodes. A pure function."""
    holders: dict[CompleteSnapshot, set[int]] = defaultdict(set)
    seen: dict[Generation, set[int]] = defaultdict(set)
    for one in found:
        holders[CompleteSnapshot(one.step, one.generation)].add(one.rank)
        seen[one.generation].add(one.rank)
    parts = [
        whole
        for whole, ranks in holders.items()
        if len(ranks) == (world_size := whole.generation.world_size)
        or not set(range(world_size)) - ranks <= seen[whole.generation]
    ]
    return max(parts, key=lambda whole: whole.step, default=None)


def holders(found: Iterable[HeldSnapshot], whole: CompleteSnapshot) -> set[int]:
    """The ranks of which it was found. A pure function."""
    return {f.rank for f in found if (f.step, f.generation) == (whole.step, whole.generation)}


def own(found: Iterable[HeldSnapshot], whole: CompleteSnapshot, rank: int) -> HeldSnapshot | None:
    """This rank's part, if it is on this node, as its own."""
    return next(
        (
            f
            for f in found
            if (f.step, f.generation, f.rank) == (whole.step, whole.generation, rank)
            and f.state != REPLICA
        ),
        None,
    )


def load(arena: Arena, start: int, planned: SavePlan, tensors: Mapping[str, Tensor]) -> None:
    """Copy a snapshot into live tensors.

    Args:
        start: of its slot, bytes.
        planned: the plan by which it was staged.
    """
    targets = [cells_of(tensors[name], part.local) for name, part in planned.parts]
    sources = [
        place_for(arena.view(start + place.start, place.length), 0, cells)
        for place, cells in zip(planned.layout.places, targets, strict=True)
    ]
    copy(targets, sources)


def await_durable(
    ranks: RankGroup,
    client: ServiceClient,
    whole: CompleteSnapshot,
    patience_s: float,
    is_stored: Callable[[], bool],
) -> bool:
    """Let the services make a snapshot durable that is in memory alone. A collective.

    Args:
        patience_s: seconds without any change after which it is given up.
        is_stored: whether all parts of it are in the store, so that it only lacks the commit, which
            is left to the take-over: who was to do it may be gone. Asked on rank 0.

    Returns:
        Whether it is; False if they cannot, and say so in their logs.
    """
    begun_s = told_s = changed_s = time.monotonic()
    before: list[str] = []
    while True:
        states = ranks.all_gather(_state(client, whole), ranks.control)
        if "durable" in states or ranks.from_rank0(is_stored):
            return True
        if not {"waiting", "writing"} & set(states):
            logger.warning("the snapshot of step %d cannot become a checkpoint", whole.step)
            return False
        now_s = time.monotonic()
        changed_s = now_s if states != before else changed_s
        is_stuck = ranks.broadcast(now_s - changed_s > patience_s, ranks.control)
        if is_stuck:
            logger.warning("the snapshot of step %d is not made durable: given up", whole.step)
            return False
        if now_s - told_s > TOLD_EVERY_S:
            told_s = now_s
            logger.info(
                "step %d is in memory; its nodes write it: %.0f s", whole.step, now_s - begun_s
            )
        before = states
        time.sleep(POLL_S)


def _state(client: ServiceClient, whole: CompleteSnapshot) -> str:
    """How far this node has come with it."""
    try:
        found = client.snapshots().found
    except ServiceError as error:
        logger.warning("%s", error)
        return "none"
    states = [
        one.state for one in found if (one.step, one.generation) == (whole.step, whole.generation)
    ]
    for state in ("durable", "writing", "waiting"):
        if state in states:
            return state
    return "none"
