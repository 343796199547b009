"""Selects how a state is staged: "slots" or "buckets"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

from checkpointing.events import Events
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.save.bucket_flow_control import BucketFlowControl
from checkpointing.save.bucket_shipper import BucketShipper
from checkpointing.save.save_outcomes import OutcomeListener
from checkpointing.save.shipper import Shipper
from checkpointing.service.client.service_client import ServiceClient

Staging: TypeAlias = Literal["slots", "buckets"]
AnyShipper: TypeAlias = Shipper | BucketShipper


def check_mode(staging: str) -> None:
    """Check the name of a staging mode.

    Raises:
        ValueError: there is no such mode.
    """
    if staging not in get_args(Staging):
        names = " or ".join(map(repr, get_args(Staging)))
        raise ValueError(f"staging is {names}, got {staging!r}")


def hear_both(
    flow: BucketFlowControl, outcomes: OutcomeListener
) -> Callable[[dict[str, Any]], None]:
    """Returns the function to call with every message of the service."""

    def hear(message: dict[str, Any]) -> None:
        flow.hear(message)
        outcomes.hear(message)

    return hear


def shipper_for(
    staging: Staging,
    client: ServiceClient,
    ranks: RankGroup,
    outcomes: OutcomeListener,
    events: Events,
    flow: BucketFlowControl,
    *,
    slots: int,
    overlap: bool,
) -> AnyShipper:
    """Returns the shipper for a staging mode.

    Args:
        slots, overlap: as for `Checkpointer`, for the mode that uses them.
    """
    if staging == "buckets":
        return BucketShipper(client, ranks, outcomes, events, flow)
    return Shipper(client, ranks.rank, outcomes, events, slots=slots, overlap=overlap)
