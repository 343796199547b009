"""`hpckit why`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpckit.cli.common.command_errors import reported_errors
from hpckit.cli.common.run_argument import JsonOption, RunPath, submitted_run

if TYPE_CHECKING:
    from hpckit.events.event_log import Event
    from hpckit.report.overview import Overview
    from hpckit.report.why import RetryBudget


def why(run: RunPath, json: JsonOption = False) -> None:
    """Explain why a run ended, waits or was interrupted, and what to do next.

    Example: hpckit why gpt-1a2b3c4d

    It only reads the run directory and calls squeue.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.report.overview import Queue, read_overview
    from hpckit.report.why import error_place, explain_run

    with reported_errors(json):
        it = read_overview(submitted_run(run), Queue())
        out, budget = CommandOutput(json), budget_of_run(it)
        found = explain_run(it, budget, time.time())
        error = (it.verdict or {}).get("error")
        out.document(
            {
                "run": it.run.name,
                "state": str(it.state),
                "verdict": it.verdict,
                "where": error_place(it) if error else None,
                **found.record(),
            }
        )
        for fact in found.facts:
            out.fact(fact.name, fact.text)
        for command in found.commands:
            out.dim(f"    {command}")


def budget_of_run(it: Overview, events: Sequence[Event] | None = None) -> RetryBudget | None:
    """Return the retry budget of a verdict after which further attempts may follow.

    Args:
        events: the run's events, if they were read already.
    """
    from hpckit.agent.verdict_record import VerdictKind
    from hpckit.events.event_log import read_events
    from hpckit.report.why import RetryBudget
    from hpckit.supervisor.verdict import budget_of, used_retries

    if it.verdict is None or it.spec is None or it.verdict.get("kind") not in list(VerdictKind):
        return None
    kind = VerdictKind(it.verdict["kind"])
    allowed = budget_of(kind, it.spec.retry)
    if allowed is None:
        return None
    known_events = read_events(it.run.events) if events is None else events
    return RetryBudget(f"retry.{kind.value}", used_retries(known_events, kind), allowed)
