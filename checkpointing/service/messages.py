"""Snapshots and generations as messages, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from checkpointing.errors import ServiceError
from checkpointing.service.snapshots import Generation, Layout, Place, Snapshot

PROTOCOL = 1  # of the messages between trainers and services; both have to have the same


def dump_layout(layout: Layout) -> dict[str, Any]:
    places = [[p.name, p.dtype, p.shape, p.offsets, p.sizes, p.start] for p in layout.places]
    return {"digest": layout.digest, "places": places}


def load_layout(plain: Mapping[str, Any]) -> Layout:
    """Raises:
    ServiceError: it is no layout.
    """
    try:
        places = tuple(
            Place(name, dtype, tuple(shape), tuple(offsets), tuple(sizes), start)
            for name, dtype, shape, offsets, sizes, start in plain["places"]
        )
        return Layout(plain["digest"], places)
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceError(f"what came is no layout: {error!r}") from error


def dump_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Without its layout, which is sent once and referred to by its digest."""
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
    }


def load_snapshot(plain: Mapping[str, Any], layouts: Mapping[str, Layout]) -> Snapshot:
    """Raises:
    ServiceError: it is no snapshot, or its layout was never sent.
    """
    try:
        fields = dict(plain)
        layout = layouts[fields.pop("digest")]
        generation = Generation(**fields.pop("generation"))
        return Snapshot(generation=generation, layout=layout, **fields)
    except (KeyError, TypeError) as error:
        raise ServiceError(f"what came is no snapshot: {error!r}") from error
