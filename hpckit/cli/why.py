"""`hpckit why`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpckit.cli.refusal import refusing
from hpckit.cli.runpath import JsonOption, RunPath, submitted_run

if TYPE_CHECKING:
    from hpckit.report.overview import Overview
    from hpckit.report.why import Budget
    from hpckit.run.events import Event


def why(run: RunPath, json: JsonOption = False) -> None:
    """Tell why a run ended, waits, or was interrupted, and what comes next or is to be done.

    Example: hpckit why gpt-1a2b3c4d

    Nothing else is asked than the run directory and squeue.
    """
    from hpckit.cli.ckpt.output import Out
    from hpckit.report.overview import Queue, look
    from hpckit.report.why import answer, error_place

    with refusing(json):
        it = look(submitted_run(run), Queue())
        out, budget = Out(json), budget_of_run(it)
        found = answer(it, budget, time.time())
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


def budget_of_run(it: Overview, events: Sequence[Event] | None = None) -> Budget | None:
    """Of a verdict that there may be further attempts after.

    Args:
        events: of the run, if they were read already.
    """
    from hpckit.elastic.budget import used
    from hpckit.elastic.verdict import Kind, budget_of
    from hpckit.report.why import Budget
    from hpckit.run.events import read_events

    if it.verdict is None or it.spec is None or it.verdict.get("kind") not in list(Kind):
        return None
    kind = Kind(it.verdict["kind"])
    allowed = budget_of(kind, it.spec.retry)
    if allowed is None:
        return None
    told = read_events(it.run.events) if events is None else events
    return Budget(f"retry.{kind.value}", used(told, kind), allowed)
