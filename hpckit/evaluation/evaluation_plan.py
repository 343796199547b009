"""Decides which evaluations are submitted now, and which are left out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from checkpointing.events import CheckpointCommitted
from hpckit.report.evaluation.evaluation_records import EvaluationRecord


@dataclass(frozen=True)
class EvaluationLimits:
    """How many evaluations there may be."""

    max_pending: int
    """Evaluations that are queued or run at the same time."""
    retries: int
    """How often one that failed or was lost is submitted again."""
    backlog: Literal["each", "newest"] = "each"


@dataclass(frozen=True)
class EvaluationPlan:
    """What is to be done now."""

    submit: tuple[EvaluationRecord, ...] = ()
    """In the order of their submission."""
    skip: tuple[tuple[EvaluationRecord, str], ...] = ()
    """What is left out, and why."""


def known_evaluations(
    chosen: Sequence[CheckpointCommitted], records: Sequence[EvaluationRecord]
) -> list[EvaluationRecord]:
    """Returns the evaluations of the chosen checkpoints by step, with what is known of each."""
    known = {record.id: record for record in records}
    return [known.get(one.id or "", EvaluationRecord(one.step, one.id or "")) for one in chosen]


def plan_evaluations(
    evaluations: Sequence[EvaluationRecord],
    limits: EvaluationLimits,
    lost: Collection[str] = (),
    *,
    removed: Collection[str] = (),
    is_last: bool = False,
) -> EvaluationPlan:
    """Returns which evaluations are submitted now.

    Args:
        evaluations: those of the chosen checkpoints, by step.
        lost: ids of those whose last submission exists no more, without a result.
        removed: ids of checkpoints that are not in the store any more.
        is_last: whether nothing can be submitted later, so that all that wait are.
    """
    waiting = [one for one in evaluations if _is_waiting(one, lost)]
    skip = [(one, "retention has removed the checkpoint") for one in waiting if one.id in removed]
    waiting = [one for one in waiting if one.id not in removed]
    spent = [one for one in waiting if len(one.submitted) > limits.retries]
    waiting = [one for one in waiting if len(one.submitted) <= limits.retries]
    skip += [(one, _why_given_up(one)) for one in spent]
    places = len(waiting) if is_last else max(0, limits.max_pending - _pending(evaluations, lost))
    if limits.backlog == "newest" and places:
        places = min(places, limits.max_pending)
        left_out = [one for one in waiting[:-places] if not one.submitted]
        skip += [(one, "newer checkpoints wait for their evaluation, too") for one in left_out]
        waiting = waiting[-places:]
    return EvaluationPlan(tuple(waiting[:places]), tuple(skip))


def _is_waiting(one: EvaluationRecord, lost: Collection[str]) -> bool:
    if one.success is not None or one.skipped is not None or one.is_running:
        return False
    return not one.submitted or one.has_failed_last or one.id in lost


def _pending(evaluations: Sequence[EvaluationRecord], lost: Collection[str]) -> int:
    is_open = (
        one.success is None and one.skipped is None and (one.submitted or one.is_running)
        for one in evaluations
        if not _is_waiting(one, lost)
    )
    return sum(map(bool, is_open))


def _why_given_up(one: EvaluationRecord) -> str:
    tries = len(one.submitted)
    why = one.error or "its process was lost"
    return f"it was submitted {tries} time{'s' if tries != 1 else ''} and has failed: {why}"
