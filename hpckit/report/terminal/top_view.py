"""`hpckit top`: the present state of all runs, and details of one of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hpckit.report.overview import Overview
from hpckit.report.run_state import RunState
from hpckit.report.straggler_summary import describe_cost
from hpckit.report.terminal.status_table import word_of
from hpckit.text.quantities import span

KEYS = "up/down: choose   l: log   w: why   c: cancel   q: quit"
HEAD = ("run", "state", "step", "tok/s", "ETTR", "saved", "lag", "wait", "restarts")


def view_of(
    runs: Sequence[Overview], chosen: int, detail: RenderableType | None, title: str, now: float
) -> RenderableType:
    """Return the whole screen.

    Args:
        chosen: number of the run to which keys apply.
        detail: the details that the user has asked for.
        title: the title of the detail, or a question.
    """
    if not runs:
        return Group(Text("no run yet; start one with hpckit launch"), Text(KEYS, style="dim"))
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in HEAD:
        is_word = name in ("run", "state", "restarts")
        folds = name == "restarts"  # so that the other columns are whole on 80 columns
        table.add_column(name, justify="left" if is_word else "right", no_wrap=not folds)
    for number, it in enumerate(runs):
        style = "reverse" if number == chosen else ""
        table.add_row(it.run.name, word_of(it), *cells(it, now), style=style)
    slow = [Text(text, style="yellow") for it in runs for text in _straggler_costs(it)]
    parts: list[RenderableType] = [table, *slow, Text(KEYS, style="dim")]
    if detail is not None or title:
        parts.insert(-1, Panel(detail or "", title=title, title_align="left", border_style="dim"))
    return Group(*parts)


def _straggler_costs(it: Overview) -> list[str]:
    """Return a line that says what the stragglers of a run cost, if it has any now."""
    cost = it.progress.straggler_cost
    if it.state is not RunState.RUNNING or cost is None or not cost.ranks:
        return []
    return [f"{it.run.name}: {describe_cost(cost)}"]


def cells(it: Overview, now: float) -> list[str]:
    """Return the cells of one run after its name and state; empty if nothing is known, or it does
    not train."""
    p, is_going = it.progress, it.state is RunState.RUNNING
    behind = p.step - p.saved_step
    return [
        f"{p.step:,}/{p.steps:,}" if p.steps else "",
        f"{p.tokens_per_s:,.0f}" if is_going and p.tokens_per_s else "",
        f"{p.ettr:.0%}" if p.ettr is not None else "",
        f"{span(now - p.saved_time)} ago" if p.saved_time is not None else "",
        f"{behind:,}" if p.saved_step and behind > 0 else "",
        f"{p.data_wait:.0%}" if is_going and p.data_wait is not None else "",
        ", ".join(f"{count} {kind}" for kind, count in p.interruptions.items()),
    ]
