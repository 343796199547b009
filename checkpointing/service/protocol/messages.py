"""Converts snapshots and generations to messages and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from checkpointing.errors import DamagedError, FormatError, ServiceError
from checkpointing.format.canonical_json import JsonReader
from checkpointing.format.object_keys import MAX_STEP, is_session
from checkpointing.format.replica_differences import dump_groups, load_groups
from checkpointing.service.snapshots import Generation, RankSnapshot, SlotBox, SnapshotLayout

PROTOCOL = 4  # version of the messages between trainers and services, which both must share
# upper bound of any time in seconds, which refuses NaN, infinity and what no float can be
_MOST_S = 1e15


def load_generation(plain: Mapping[str, Any]) -> Generation:
    """Return the generation in a message.

    Raises:
        ServiceError: it is not a generation.
    """
    try:
        generation = Generation(**plain)
    except TypeError as error:
        raise ServiceError(f"the message is not a valid generation: {error}") from error
    id_, world_size, owner = generation.id, generation.world_size, generation.owner
    is_one = isinstance(id_, str) and is_session(id_) and (owner is None or _is_count(owner))
    if not (is_one and _is_count(world_size) and world_size):
        raise ServiceError(f"the message is not a valid generation: {plain!r}")
    return generation


def dump_rank(rank: int, ranks: frozenset[int], generation: Generation) -> dict[str, Any]:
    return {"rank": rank, "ranks": sorted(ranks), "generation": asdict(generation)}


def load_rank(message: Mapping[str, Any]) -> tuple[int, frozenset[int], Generation]:
    """Return a trainer's rank, the ranks of its node, and its generation.

    Raises:
        ServiceError: they do not fit together.
    """
    generation = load_generation(message["generation"])
    rank, ranks = message["rank"], message["ranks"]
    are_ranks = all(_is_count(r) and r < generation.world_size for r in [rank, *ranks])
    if not are_ranks or rank not in ranks:
        raise ServiceError(
            f"rank {rank!r}, ranks of the node {ranks!r} and world size {generation.world_size} "
            "do not fit together"
        )
    return rank, frozenset(ranks), generation


def dump_layout(layout: SnapshotLayout) -> dict[str, Any]:
    places = [[p.name, p.dtype, p.shape, p.offsets, p.sizes, p.start] for p in layout.places]
    return {"digest": layout.digest, "places": places, "groups": dump_groups(layout.groups)}


def load_layout(plain: Mapping[str, Any]) -> SnapshotLayout:
    """Return the layout in a message.

    Raises:
        ServiceError: it is not a layout.
    """
    try:
        places = tuple(
            SlotBox(name, dtype, tuple(shape), tuple(offsets), tuple(sizes), start)
            for name, dtype, shape, offsets, sizes, start in plain["places"]
        )
        groups = load_groups(JsonReader({"groups": [], **plain}, "a layout"), "groups")
        layout = SnapshotLayout(plain["digest"], places, groups)
        wrong = next((place for place in places if not _is_place(place)), None)
    except (KeyError, TypeError, ValueError, DamagedError, FormatError) as error:
        raise ServiceError(f"the message is not a valid layout: {error!r}") from error
    if wrong is not None:
        raise ServiceError(f"the message is not a valid layout: {wrong!r}")
    return layout


def dump_snapshot(snapshot: RankSnapshot) -> dict[str, Any]:
    """Return a snapshot as plain data, without its layout, which is sent once and referred to by
    its digest."""
    return {
        "generation": asdict(snapshot.generation),
        "rank": snapshot.rank,
        "step": snapshot.step,
        "slot": snapshot.slot,
        "digest": snapshot.layout.digest,
        "values": dict(snapshot.values),
        "metrics": dict(snapshot.metrics),
        "created": snapshot.created,
        "deadline_s": snapshot.deadline_s,
        "fingerprints": snapshot.fingerprints.hex(),
        **({"certified": snapshot.certified} if snapshot.certified else {}),
    }


def load_snapshot(plain: Mapping[str, Any], layouts: Mapping[str, SnapshotLayout]) -> RankSnapshot:
    """Return the snapshot in a message.

    Raises:
        ServiceError: it is not a snapshot, or its layout was never sent.
    """
    try:
        fields = dict(plain)
        layout = layouts[fields.pop("digest")]
        generation = load_generation(fields.pop("generation"))
        fingerprints = bytes.fromhex(fields.pop("fingerprints", ""))
        snapshot = RankSnapshot(
            generation=generation, layout=layout, fingerprints=fingerprints, **fields
        )
        _ = snapshot.replicas  # raises if they do not fit
    except (KeyError, TypeError, ValueError, DamagedError) as error:
        raise ServiceError(f"the message is not a valid snapshot: {error!r}") from error
    counts = (snapshot.rank, snapshot.step, snapshot.slot)
    times = (snapshot.created, 0.0 if snapshot.deadline_s is None else snapshot.deadline_s)
    are_times = all(isinstance(t, int | float) and abs(t) < _MOST_S for t in times)
    if not (all(map(_is_count, counts)) and snapshot.step <= MAX_STEP and are_times):
        raise ServiceError(f"the message is not a valid snapshot: rank, step, slot {counts!r}")
    if not (isinstance(snapshot.values, Mapping) and isinstance(snapshot.metrics, Mapping)):
        raise ServiceError(
            "the message is not a valid snapshot: its values or metrics have no names"
        )
    if not isinstance(snapshot.certified, str):
        raise ServiceError("the message is not a valid snapshot: certified is not a text")
    return snapshot


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_place(place: SlotBox) -> bool:
    numbers = (*place.shape, *place.offsets, *place.sizes, place.start)
    fits = all(o + n <= d for d, o, n in zip(place.shape, place.offsets, place.sizes, strict=True))
    return (
        isinstance(place.name, str)
        and all(map(_is_count, numbers))
        and fits
        and (
            place.length >= 0  # raises if its dtype is not known
        )
    )
