"""A rank group whose other ranks have ended."""

from __future__ import annotations

from typing import Any

from checkpointing.errors import OtherRankError
from checkpointing.ranks.rank_group import RankGroup


class Lonely(RankGroup):
    """Rank 0, whose peers have ended."""

    def broadcast(self, thing: Any, group: object) -> Any:
        raise OtherRankError("another rank has ended: Connection closed by peer")

    def all_gather(self, thing: Any, group: object) -> list[Any]:
        raise OtherRankError("another rank has ended: Connection closed by peer")
