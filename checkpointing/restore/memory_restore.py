"""Restores from memory: from snapshots that trainers left in the checkpoint services of their
nodes."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from checkpointing.errors import ServiceError
from checkpointing.format.torch_dtypes import as_bytes
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.save.save_plan import SavePlan
from checkpointing.service.client.held_snapshots import REPLICA, HeldSnapshot
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.service.snapshots import Generation
from checkpointing.staging.arena import Arena
from checkpointing.staging.tensor_copy import (
    PIECE,
    SMALL,
    apart,
    cells_of,
    copy_quickly,
    in_threads,
    is_plain,
    note_written,
    places_for,
)

logger = logging.getLogger("checkpointing")

POLL_S = 0.5
_UNREACHABLE = "unreachable"
# seconds without any change after which a restore no longer waits for a snapshot to become durable:
# one whose parts are all in memory, or one of which some parts may be on nodes that have left or
# with a service that has just ended
STUCK_S, UNSEEN_S = 600.0, 30.0
LOG_EVERY_S = 30.0


@dataclass(frozen=True)
class CompleteSnapshot:
    """A snapshot of which every rank of its generation has its part in memory on some node."""

    step: int
    generation: Generation


def newest_complete(found: Iterable[HeldSnapshot]) -> CompleteSnapshot | None:
    """Returns the newest snapshot that is complete over its generation's ranks; a pure function."""
    holders: dict[CompleteSnapshot, set[int]] = defaultdict(set)
    for one in found:
        holders[CompleteSnapshot(one.step, one.generation)].add(one.rank)
    complete = [w for w, ranks in holders.items() if len(ranks) == w.generation.world_size]
    return max(complete, key=lambda whole: whole.step, default=None)


def newest_part(found: Iterable[HeldSnapshot]) -> CompleteSnapshot | None:
    """Returns the newest snapshot that is complete or may be: nothing at all was found of the
    missing ranks, so their parts may be on other nodes. A pure function."""
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
    """Returns the ranks whose part of the snapshot was found; a pure function."""
    return {f.rank for f in found if (f.step, f.generation) == (whole.step, whole.generation)}


def own(found: Iterable[HeldSnapshot], whole: CompleteSnapshot, rank: int) -> HeldSnapshot | None:
    """Returns this rank's part if it is on this node, with this rank as its owner."""
    return next(
        (
            f
            for f in found
            if (f.step, f.generation, f.rank) == (whole.step, whole.generation, rank)
            and f.state != REPLICA
        ),
        None,
    )


def prepare_load(
    arena: Arena, start: int, planned: SavePlan, tensors: Mapping[str, Tensor]
) -> Callable[[], None]:
    """Prepare to copy a snapshot from its slot into live tensors. Returns the function that copies
    it, before which nothing changes.

    Args:
        start: offset of its slot in bytes.
        planned: the plan by which it was staged.

    Raises:
        ValueError: it does not lie in the arena.
    """
    memory = arena.view(start, planned.layout.end)  # checks that it is there
    reads: list[Callable[[], None]] = []
    read, targets, offsets = list[Tensor](), list[Tensor](), list[int]()
    there = [cells_of(tensors[name], part.local) for name, part in planned.parts]
    for place, cells, is_apart in zip(planned.layout.places, there, apart(there), strict=True):
        is_large = is_apart and cells.nbytes >= SMALL
        if is_large and is_plain(cells) and cells.is_contiguous():
            reads += _reads(arena, start + place.start, cells)
            read.append(cells)
        else:
            targets.append(cells)
            offsets.append(place.start)
    sources = places_for(memory, offsets, targets)

    def copy_all() -> None:
        copy_quickly(targets, sources)
        in_threads(reads)
        note_written(read)

    return copy_all


def _reads(arena: Arena, start: int, cells: Tensor) -> Iterator[Callable[[], None]]:
    """Yields calls that read contiguous cells from an arena."""
    into = memoryview(as_bytes(cells))
    for at in range(0, len(into), PIECE):
        yield partial(arena.read_into, start + at, into[at : at + PIECE])


def await_durable(
    ranks: RankGroup,
    client: ServiceClient,
    whole: CompleteSnapshot,
    timeout_s: float,
    is_stored: Callable[[], bool],
) -> bool:
    """Wait until the services have made durable a snapshot that exists only in memory. Collective.

    Args:
        timeout_s: seconds without any change after which this gives up.
        is_stored: called on rank 0; returns whether all parts are in the store, so that only the
            commit is missing. The takeover does that, because the save leader may be gone.

    Returns:
        Whether it is durable; False if the services cannot do it, for a reason that is in their
        logs.
    """
    started_s = logged_s = changed_s = known_s = time.monotonic()
    before: list[str] = []
    while True:
        states = ranks.all_gather(_state(client, whole), ranks.control)
        if "durable" in states or ranks.from_rank0(is_stored):
            return True
        now_s = time.monotonic()
        if {"waiting", "writing"} & set(states):
            known_s = now_s
        elif _UNREACHABLE not in states or ranks.broadcast(
            now_s - known_s > UNSEEN_S, ranks.control
        ):
            logger.warning("the snapshot of step %d cannot become a checkpoint", whole.step)
            return False
        changed_s = now_s if states != before else changed_s
        is_stuck = ranks.broadcast(now_s - changed_s > timeout_s, ranks.control)
        if is_stuck:
            logger.warning("the snapshot of step %d is given up and not made durable", whole.step)
            return False
        if now_s - logged_s > LOG_EVERY_S:
            logged_s = now_s
            logger.info(
                "step %d is in memory and its nodes are writing it; waiting %.0f s",
                whole.step,
                now_s - started_s,
            )
        before = states
        time.sleep(POLL_S)


def _state(client: ServiceClient, whole: CompleteSnapshot) -> str:
    """Returns how far this node's service has come with the snapshot. What a service that has just
    ended had need not be lost: the next one reads what is on the node's disk."""
    try:
        found = client.snapshots().found
    except ServiceError as error:
        logger.warning("%s", error)
        return _UNREACHABLE
    states = [
        one.state for one in found if (one.step, one.generation) == (whole.step, whole.generation)
    ]
    for state in ("durable", "writing", "waiting"):
        if state in states:
            return state
    return "none"
