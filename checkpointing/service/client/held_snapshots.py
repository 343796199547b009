"""The shared memory and the snapshots that trainers find in the service of their node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checkpointing.format.values.json_values import Json
from checkpointing.service.snapshots import Generation
from checkpointing.staging.arena import Arena

REPLICA = "replica"  # the state of a snapshot that is held for another node


@dataclass(frozen=True)
class LeftoverArena:
    """Shared memory that an earlier trainer of this rank has left in the service.

    Attributes:
        newest: offset and length, in bytes, of the newest whole snapshot in it; None: it has none,
            or the service does not say.
    """

    arena: Arena
    slots: int
    slot_bytes: int
    newest: tuple[int, int] | None = None

    @property
    def shape(self) -> dict[str, int]:
        """Return the shape of the memory as fields of a message."""
        return {"slots": self.slots, "slot_bytes": self.slot_bytes, "buckets": 0}


@dataclass(frozen=True)
class HeldSnapshot:
    """A whole snapshot in the service. All but the layout is plain data, because it is sent between
    ranks."""

    generation: Generation
    rank: int
    step: int
    slot: int
    digest: str
    state: str


@dataclass(frozen=True)
class SnapshotMetadata:
    """What a rank recorded about its snapshot beside the tensors."""

    values: Mapping[str, Json]
    metrics: Mapping[str, float]
    fingerprints: bytes = b""  # as of `Snapshot`
    digests: Mapping[str, str] = field(default_factory=dict)  # as of `Snapshot`
    certified: str = ""  # as of `ManifestHeader`


@dataclass(frozen=True)
class ServiceMemory:
    """The memory and the snapshots that this node's service holds."""

    found: tuple[HeldSnapshot, ...]
    # the metadata of this rank's snapshots, by generation and step
    own: Mapping[tuple[Generation, int], SnapshotMetadata]


@dataclass(frozen=True)
class PulledSnapshot:
    """This rank's part of a snapshot, received from another node. The holder of this object closes
    its memory."""

    left: LeftoverArena
    found: HeldSnapshot
    metadata: SnapshotMetadata


def load_leftover_arena(answer: dict[str, Any]) -> LeftoverArena | None:
    fds: list[int] = answer["fds"]
    if not fds:
        return None
    newest = answer.get("newest")  # services of earlier versions do not send it
    return LeftoverArena(
        Arena.attach(fds[0]),
        answer["slots"],
        answer["slot_bytes"],
        None if newest is None else (int(newest[0]), int(newest[1])),
    )


def load_held_snapshot(plain: dict[str, Any]) -> HeldSnapshot:
    return HeldSnapshot(
        Generation(**plain["generation"]),
        plain["rank"],
        plain["step"],
        plain["slot"],
        plain["digest"],
        plain["state"],
    )


def load_snapshot_metadata(plain: dict[str, Any]) -> SnapshotMetadata:
    return SnapshotMetadata(
        plain["values"],
        plain["metrics"],
        bytes.fromhex(plain["fingerprints"]),
        plain.get("digests", {}),
        plain.get("certified", ""),
    )


def load_service_memory(answer: dict[str, Any], rank: int) -> ServiceMemory:
    """Read the answer of the service; metadata is kept for `rank` alone."""
    plain = answer["snapshots"]
    found = tuple(load_held_snapshot(each) for each in plain)
    own = {
        (one.generation, one.step): load_snapshot_metadata(each)
        for one, each in zip(found, plain, strict=True)
        if one.rank == rank and one.state != REPLICA
    }
    return ServiceMemory(found, own)
