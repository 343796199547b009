"""What trainers find in their node's service: memory, and the snapshots in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpointing.arena import Arena
from checkpointing.service.snapshots import Generation
from checkpointing.values import Json

REPLICA = "replica"  # the state of what is held for another node


@dataclass(frozen=True)
class Left:
    """Shared memory that an earlier trainer of this rank has left in the service."""

    arena: Arena
    slots: int
    slot_bytes: int

    @property
    def shape(self) -> dict[str, int]:
        """As a message has it."""
        return {"slots": self.slots, "slot_bytes": self.slot_bytes, "buckets": 0}


@dataclass(frozen=True)
class Found:
    """A whole snapshot in the service. Plain data, all but the layout: it travels between ranks."""

    generation: Generation
    rank: int
    step: int
    slot: int
    digest: str
    state: str


@dataclass(frozen=True)
class Said:
    """What a rank said of its snapshot beside the tensors."""

    values: Mapping[str, Json]
    metrics: Mapping[str, float]
    fingerprints: bytes = b""  # as of `Snapshot`
    digests: Mapping[str, str] = field(default_factory=dict)  # as of `Snapshot`


@dataclass(frozen=True)
class Memory:
    """What this node's service holds."""

    found: tuple[Found, ...]
    own: Mapping[tuple[Generation, int], Said]  # what came with this rank's, by step


@dataclass(frozen=True)
class Pulled:
    """This rank's part of a snapshot, that came from elsewhere. Who has it closes the memory."""

    left: Left
    found: Found
    said: Said


def left_in(answer: dict[str, Any]) -> Left | None:
    fds: list[int] = answer["fds"]
    return Left(Arena.attach(fds[0]), answer["slots"], answer["slot_bytes"]) if fds else None


def found_in(plain: dict[str, Any]) -> Found:
    return Found(
        Generation(**plain["generation"]),
        plain["rank"],
        plain["step"],
        plain["slot"],
        plain["digest"],
        plain["state"],
    )


def said_in(plain: dict[str, Any]) -> Said:
    return Said(
        plain["values"],
        plain["metrics"],
        bytes.fromhex(plain["fingerprints"]),
        plain.get("digests", {}),
    )


def memory_in(answer: dict[str, Any], rank: int) -> Memory:
    """`rank`: whose own words are kept."""
    plain = answer["snapshots"]
    found = tuple(found_in(each) for each in plain)
    own = {
        (one.generation, one.step): said_in(each)
        for one, each in zip(found, plain, strict=True)
        if one.rank == rank and one.state != REPLICA
    }
    return Memory(found, own)
