"""The pages of one run: its state, and its first error with the end of its log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpckit.agent.exit_report import WorkerError
from hpckit.report.last_cause import last_cause
from hpckit.report.overview import Overview
from hpckit.report.terminal.status_table import page_of
from hpckit.report.why import RetryBudget, explain_run
from hpckit.serve.pages.html_elements import (
    Html,
    alert,
    facts,
    joined,
    note,
    preformatted,
    tag,
)
from hpckit.serve.pages.page_shell import PageFrame, breadcrumbs, page
from hpckit.serve.pages.run_words import (
    over_note,
    remaining_words,
    saved_words,
    small_picture,
    speed_words,
    state_badge,
    step_words,
)
from hpckit.serve.run_reader import ReadRun

_REPEATED = ("state", "step", "saved")
"""Lines of `hpckit status` that are among the key facts."""


@dataclass(frozen=True)
class RunTrouble:
    """What the logs of a run say."""

    generation: int | None
    """Of the first error."""
    error: WorkerError | None
    where: str | None
    """The place of the error in the user's code."""
    log: Sequence[str]
    """The last lines of the supervisor's log."""
    problem: str | None = None
    """Why the logs could not be read."""


def run_page(frame: PageFrame, read: ReadRun, now: float) -> str:
    """Return the page of a run's state."""
    ways = breadcrumbs(frame, read.key, read.name, "index.html")
    problem = alert(read.problem) if read.problem else None
    it = read.overview
    if it is None:
        return page(frame, read.name, joined(ways, problem), now)
    p = it.progress
    key = [
        ("state", state_badge(read)),
        ("step", step_words(it)),
        ("speed", over_note(speed_words(it))),
        ("to go", remaining_words(it)),
        ("loss", "" if p.loss is None else f"{p.loss:.4g}"),
        ("ETTR", "" if p.ettr is None else f"{p.ettr:.0%}"),
        ("newest checkpoint", over_note(saved_words(it, now))),
    ]
    cause = last_cause(it, now)
    status = [(name, str(text)) for name, text in page_of(it, now) if name not in _REPEATED]
    main = joined(
        ways,
        problem,
        facts(*((name, text) for name, text in key if text), are_key=True),
        tag("p", cause) if cause else None,
        _curve(read),
        tag("h2", "Why, and what follows"),
        *_why(it, read.budget, now),
        tag("h2", "Status"),
        facts(*status),
    )
    return page(frame, read.name, main, now)


def _curve(read: ReadRun) -> Html | None:
    picture = small_picture(read.loss, "loss by step", "large")
    if not picture:
        return None
    first, last = read.loss[0][0], read.loss[-1][0]
    return tag("figure", picture, note(f"loss, steps {first:,} to {last:,}"))


def _why(it: Overview, budget: RetryBudget | None, now: float) -> list[Html]:
    found = explain_run(it, budget, now)
    parts = [facts(*((fact.name, fact.text) for fact in found.facts))]
    return [*parts, preformatted("\n".join(found.commands))] if found.commands else parts


def error_page(frame: PageFrame, read: ReadRun, trouble: RunTrouble, now: float) -> str:
    """Return the page of a run's first error, and the end of its supervisor's log."""
    error = trouble.error
    main = joined(
        breadcrumbs(frame, read.key, read.name, "error.html"),
        alert(trouble.problem) if trouble.problem else None,
        tag("h2", "First error"),
        *(_error(trouble, error) if error else [note("No rank and no torchrun recorded one.")]),
        tag("h2", "End of the supervisor’s log"),
        preformatted("\n".join(trouble.log)) if trouble.log else note("No log exists."),
    )
    return page(frame, read.name, main, now, is_live=False)


def _error(trouble: RunTrouble, error: WorkerError) -> list[Html]:
    whose = error.where if error.rank is None else f"rank {error.rank}"
    said = f"{error.type}: {error.message}"
    rows = [("error", said.partition("\n")[0]), ("of", whose)]
    rows += [("where", trouble.where)] if trouble.where else []
    rows += [("generation", str(trouble.generation))]
    rows += [("read from", error.file)] if error.file else []
    return [facts(*rows), preformatted(error.traceback.rstrip() or said)]
