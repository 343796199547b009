"""Waiting on all ranks for what becomes of a save."""

from __future__ import annotations

from collections.abc import Sequence

from checkpointing.errors import SaveError
from checkpointing.ranks.rank_group import RankGroup
from checkpointing.save.save_outcomes import OutcomeListener, SaveOutcome, SaveStatus

POLL_S = 0.2  # between the ranks' looks at each other


def wait_together(ranks: RankGroup, outcomes: OutcomeListener, step: int | None) -> None:
    """Return when the save of this step is committed. A collective.

    One that was skipped is told when those before it have ended too.

    Args:
        step: None: this rank has saved nothing that it would have to wait for.

    Raises:
        SaveError: on all ranks: it failed or was skipped on any, they wait for different ones, or
            a rank is gone.
    """
    while True:
        mine = None if step is None else outcomes.wait(step, POLL_S)
        try:
            everybody = ranks.all_gather((step, mine), ranks.control)
        except RuntimeError as error:
            if step is None:
                return
            raise SaveError(f"saving step {step}: another rank is gone: {error}") from error
        steps = [theirs for theirs, _ in everybody]
        if any(theirs != step for theirs in steps):
            raise SaveError(f"ranks wait for different steps, in order of rank: {steps}")
        fates = [outcome for _, outcome in everybody if outcome is not None]
        if all(outcome.fate is SaveStatus.COMMITTED for outcome in fates):
            return
        if any(outcome.is_behind for outcome in fates) and not _has_failed(fates):
            continue  # so that there is a place for the next one
        if problems := _problems(fates):
            raise SaveError(f"saving step {step}: {problems}")


def _has_failed(outcomes: Sequence[SaveOutcome]) -> bool:
    """Then what is under way on other ranks, which wait for that one, may never end."""
    return any(outcome.fate is SaveStatus.FAILED for outcome in outcomes)


def _problems(outcomes: Sequence[SaveOutcome]) -> str:
    """What went wrong, on which ranks; empty if nothing has."""
    return "; ".join(
        f"rank {rank}: {outcome.why}"
        for rank, outcome in enumerate(outcomes)
        if outcome.fate in (SaveStatus.FAILED, SaveStatus.GONE)
    )
