"""Going on from the newest checkpoint that nobody has anything against."""

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
"""Why the state that was taken over is not to be gone on from; None: it is."""


class ResumerFactory(Protocol):
    def __call__(self, *, rejected: dict[str, str]) -> Resumer:
        """One that passes over the checkpoints with these ids."""


def newest_accepted(
    make: ResumerFactory,
    state: dict[str, Any],
    check: Check | None,
    ranks: RankGroup,
    events: Events,
) -> tuple[RestoreResult | None, Resumer]:
    """Have `state` take over the newest checkpoint that no rank's `check` has a reason against, and
    who has done so. A collective.

    Raises:
        CheckpointError: there is something against each; `state` holds one of them.
    """
    rejected: dict[str, str] = {}
    while True:
        resumer = make(rejected=rejected)
        resumed = resumer.resume(state)
        if resumed is None and rejected:
            told = "; ".join(f"{id_}: {why}" for id_, why in rejected.items())
            raise CheckpointError(f"there is nothing left to go on from: {told}")
        reason = _against(ranks, check) if resumed is not None and check is not None else None
        if resumed is None or reason is None:
            return resumed, resumer
        logger.warning("checkpoint %s is passed over: %s", resumed.id, reason)
        events.emit("checkpoint_skipped", step=resumed.step, id=resumed.id, reason=reason)
        rejected[resumed.id] = reason


def _against(ranks: RankGroup, check: Check) -> str | None:
    mine = ranks.all_or_none(check)
    told = enumerate(ranks.all_gather(mine, ranks.control))
    return "; ".join(f"rank {rank}: {why}" for rank, why in told if why) or None
