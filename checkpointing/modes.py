"""The ways to stage a state, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from checkpointing.bucketshipping import BucketShipper
from checkpointing.events import Events
from checkpointing.flow import Flow
from checkpointing.outcomes import Outcomes
from checkpointing.ranks import Ranks
from checkpointing.service.client import Client
from checkpointing.shipping import Shipper

Staging: TypeAlias = Literal["slots", "buckets"]
AnyShipper: TypeAlias = Shipper | BucketShipper


def check_mode(staging: str) -> None:
    """Raises:
    ValueError: there is no such way.
    """
    if staging not in get_args(Staging):
        names = " or ".join(map(repr, get_args(Staging)))
        raise ValueError(f"staging is {names}, got {staging!r}")


def hear_both(flow: Flow, outcomes: Outcomes) -> Callable[[dict[str, Any]], None]:
    """What to call with all that the service says."""

    def hear(message: dict[str, Any]) -> None:
        flow.hear(message)
        outcomes.hear(message)

    return hear


def shipper_for(
    staging: Staging,
    client: Client,
    ranks: Ranks,
    outcomes: Outcomes,
    events: Events,
    flow: Flow,
    *,
    slots: int,
    overlap: bool,
) -> AnyShipper:
    """
    Args:
        slots, overlap: as of `Checkpointer`, for the way that has them.
    """
    if staging == "buckets":
        return BucketShipper(client, ranks, outcomes, events, flow)
    return Shipper(client, ranks.rank, outcomes, events, slots=slots, overlap=overlap)
