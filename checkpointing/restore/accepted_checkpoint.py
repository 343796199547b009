"""Restores the newest checkpoint that the user's check accepts on every rank."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from checkpointing.errors import CheckpointError
from checkpointing.events import Events
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.restore.resume_source import RestoreResult, Resumer

logger = logging.getLogger("checkpointing")

Check: TypeAlias = Callable[[], str | None]
"""Returns why the restored state must not be used, or None if it may be."""


class ResumerFactory(Protocol):
    def __call__(self, *, rejected: dict[str, str]) -> Resumer:
        """Returns a resumer that skips the checkpoints with these ids."""


def newest_accepted(
    make: ResumerFactory,
    state: dict[str, Any],
    check: Check | None,
    ranks: RankGroup,
    events: Events,
) -> tuple[RestoreResult | None, Resumer]:
    """Restore `state` from the newest checkpoint that `check` accepts on every rank. Returns the
    result and the resumer. Collective.

    Raises:
        CheckpointError: every checkpoint was rejected; `state` holds one of them.
    """
    rejected: dict[str, str] = {}
    while True:
        resumer = make(rejected=rejected)
        resumed = resumer.resume(state)
        if resumed is None and rejected:
            reasons = "; ".join(f"{id_}: {why}" for id_, why in rejected.items())
            raise CheckpointError(f"there is nothing left to go on from: {reasons}")
        reason = _rejections(ranks, check) if resumed is not None and check is not None else None
        if resumed is None or reason is None:
            return resumed, resumer
        logger.warning("checkpoint %s is skipped: %s", resumed.id, reason)
        events.emit("checkpoint_skipped", step=resumed.step, id=resumed.id, reason=reason)
        rejected[resumed.id] = reason


def _rejections(ranks: RankGroup, check: Check) -> str | None:
    mine = ranks.all_or_none(check)
    reasons = enumerate(ranks.all_gather(mine, ranks.control))
    return "; ".join(f"rank {rank}: {why}" for rank, why in reasons if why) or None
