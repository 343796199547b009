"""The options of the save pipeline, and the choice of the staging mode that they ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from checkpointing.connections import Connections
from checkpointing.save.bucket_shipper import BucketShipper
from checkpointing.save.replica_check import ReplicaCheck
from checkpointing.save.save_outcomes import OutcomeListener
from checkpointing.save.shipper import SnapshotShipper
from checkpointing.save.slot_shipper import SlotShipper
from checkpointing.state.per_rank import Differing, check_differing

Staging: TypeAlias = Literal["slots", "buckets"]


@dataclass(frozen=True)
class SaveOptions:
    """How a rank saves.

    Attributes:
        check: which replicas (of a tensor) are compared, and how often.
        staging, slots, overlap, differing, max_unsaved: as of `CheckpointerOptions`.

    Raises:
        ValueError: an option has a value that it cannot have.
    """

    check: ReplicaCheck
    staging: Staging = "slots"
    slots: int = 2
    overlap: bool = True
    differing: Differing = "error"
    max_unsaved: float | None = None

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots must be a number of snapshots, at least 1, got {self.slots!r}")
        if self.staging not in get_args(Staging):
            names = " or ".join(map(repr, get_args(Staging)))
            raise ValueError(f"staging must be {names}, got {self.staging!r}")
        check_differing(self.differing)


def open_shipper(
    options: SaveOptions, connections: Connections, outcomes: OutcomeListener
) -> SnapshotShipper:
    """Returns the shipper for the staging mode. Everything else works with either mode through the
    interface `SnapshotShipper`."""
    if options.staging == "buckets":
        return BucketShipper(connections, outcomes)
    return SlotShipper(connections, outcomes, slots=options.slots, overlap=options.overlap)
