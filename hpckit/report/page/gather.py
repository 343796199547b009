"""Reads all that a page tells of a run: its directory, its lock, its store, Slurm's queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from checkpointing import CheckpointError, CheckpointInfo
from hpckit.report.history import build_history
from hpckit.report.kept import left_checkpoints
from hpckit.report.overview import Overview, Queue, look
from hpckit.report.page.content import Content, Damage, build_content
from hpckit.report.sound import Told, read_sound
from hpckit.report.why import Budget
from hpckit.run.directory import RunDir
from hpckit.run.events import Event

BudgetOf = Callable[[Overview, Sequence[Event]], Budget | None]


def gather(run: RunDir, slurm: Queue, budget_of: BudgetOf, told: Told | None = None) -> Content:
    """
    Args:
        told: the run's events, if they were read already.
        budget_of: how much of its retries a run has used up, by its events.

    Raises:
        OSError: the run's directory cannot be read.
    """
    told = told or read_sound(run)
    overview = look(run, slurm, told.events)
    left, problem = _left(run, told.events)
    budget = budget_of(overview, told.events)
    damage = Damage(told.torn, told.unsound, problem)
    return build_content(overview, told.events, budget, left, damage, time.time())


def _left(run: RunDir, events: Sequence[Event]) -> tuple[list[CheckpointInfo] | None, str | None]:
    """Checkpoints that are still there; None, and why, where it cannot be told."""
    history = build_history([event for event in events if event.kind == "checkpoint_committed"])
    try:
        return left_checkpoints(run, history), None
    except (CheckpointError, FileNotFoundError) as error:
        return None, str(error)
