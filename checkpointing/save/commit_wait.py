"""Waits on all ranks for the outcome of a save."""

from __future__ import annotations

from collections.abc import Sequence

from checkpointing.errors import OtherRankError, SaveError
from checkpointing.ranks.rank_group import RankGroup, first_reasons
from checkpointing.save.save_outcomes import OutcomeListener, SaveOutcome, SaveStatus

POLL_S = 0.2  # seconds between exchanges of the outcomes among ranks


def wait_together(ranks: RankGroup, outcomes: OutcomeListener, step: int | None) -> None:
    """Return when the save of this step is committed. Collective.

    For a save that was skipped, this also waits until the saves before it have ended.

    Args:
        step: None: this rank has nothing to wait for.

    Raises:
        SaveError: on all ranks, if the save failed or was skipped on any, if they wait for
            different steps, or if a rank is gone.
    """
    while True:
        mine = None if step is None else outcomes.wait(step, POLL_S)
        try:
            gathered = ranks.all_gather((step, mine), ranks.control)
        except OtherRankError as error:
            if step is None:
                return
            raise SaveError(f"saving step {step}: {error}") from error
        steps = [theirs for theirs, _ in gathered]
        if any(theirs != step for theirs in steps):
            raise SaveError(f"ranks wait for different steps, in order of rank: {steps}")
        fates = [outcome for _, outcome in gathered if outcome is not None]
        if all(outcome.fate is SaveStatus.COMMITTED for outcome in fates):
            return
        if any(outcome.is_behind for outcome in fates) and not _has_failed(fates):
            continue  # until there is a free slot for the next save
        if problems := _problems(fates):
            advice = "" if _has_failed(fates) else "; save(..., is_last=True) waits instead"
            raise SaveError(f"saving step {step}: {problems}{advice}")


def _has_failed(outcomes: Sequence[SaveOutcome]) -> bool:
    """Whether a save has failed on some rank: saves in progress on others, which wait for it, may
    then never end."""
    return any(outcome.fate is SaveStatus.FAILED for outcome in outcomes)


def _problems(outcomes: Sequence[SaveOutcome]) -> str:
    """Describes what went wrong on which ranks; empty if nothing has."""
    gone = (SaveStatus.FAILED, SaveStatus.GONE)
    whys = [f"rank {rank}: {one.why}" for rank, one in enumerate(outcomes) if one.fate in gone]
    return first_reasons(whys)
