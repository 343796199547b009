"""Reads the content of a page about a run: from its directory, run lock and store, and Slurm's
queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from checkpointing import CheckpointError, CheckpointInfo
from checkpointing.events import CheckpointCommitted
from hpckit.events.event_validation import ValidatedEvents, read_valid_events
from hpckit.events.schema import Event, RunStarted
from hpckit.report.cost.cost_summary import CostRates, Prices
from hpckit.report.cost.energy import known_joules
from hpckit.report.history import build_history
from hpckit.report.overview import Overview, Queue, read_overview
from hpckit.report.page.page_content import PageContent, RecordDamage, build_content
from hpckit.report.page.run_family import read_family
from hpckit.report.remaining_checkpoints import left_checkpoints
from hpckit.report.why import RetryBudget
from hpckit.rundir.directory import RunDir

BudgetOf = Callable[[Overview, Sequence[Event]], RetryBudget | None]


def read_content(
    run: RunDir,
    slurm: Queue,
    budget_of: BudgetOf,
    validated: ValidatedEvents | None = None,
    prices: Prices | None = None,
) -> PageContent:
    """Read the content.

    Args:
        validated: the run's events, if they were read already.
        budget_of: returns how much of its retry budget a run has used, from its events.
        prices: what an hour costs, if that is known.

    Raises:
        OSError: the run's directory cannot be read.
    """
    validated = validated or read_valid_events(run)
    overview = read_overview(run, slurm, validated.events)
    left, problem = _left(run, validated.events)
    budget = budget_of(overview, validated.events)
    damage = RecordDamage(validated.torn, validated.unsound, problem)
    jobs = {event.job for event in validated.events if isinstance(event, RunStarted) and event.job}
    rates = CostRates(prices or Prices(), known_joules(jobs))
    family = read_family(run, slurm)
    return build_content(
        overview, validated.events, budget, left, damage, time.time(), family, rates
    )


def _left(run: RunDir, events: Sequence[Event]) -> tuple[list[CheckpointInfo] | None, str | None]:
    """Return the checkpoints that still exist; or None, and why they are not known."""
    history = build_history([event for event in events if isinstance(event, CheckpointCommitted)])
    try:
        return left_checkpoints(run, history), None
    except (CheckpointError, FileNotFoundError) as error:
        return None, str(error)
