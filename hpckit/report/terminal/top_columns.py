"""The table of `hpckit top`: which columns there are, and which of them fit on a screen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from hpckit.report.overview import Overview
from hpckit.report.remaining_time import remaining_s
from hpckit.report.run_state import RunState
from hpckit.report.terminal.status_table import word_of
from hpckit.text.quantities import clean, span

_GAP = 2
_NARROW = 60
"""Width below which there is less space between columns."""
_LEAST_NAME = 12
_LEAST_CAUSE = 24
_MANY = 100_000
"""Number of steps from which on it is not given exactly."""


@dataclass(frozen=True)
class TopColumn:
    """A column after name and state."""

    name: str
    meaning: str
    """What it says, for the help."""
    text: Callable[[Overview, float], str]
    """Its text of a run at a time in seconds since the epoch; empty if it is not known, or the run
    does not train."""


def _step(it: Overview, now: float) -> str:
    p = it.progress
    if p.steps:
        return f"{p.step:,}/{short(p.steps) if p.steps >= _MANY else f'{p.steps:,}'}"
    return f"{p.step:,}" if p.step else ""


def _loss(it: Overview, now: float) -> str:
    return f"{it.progress.loss:.4g}" if it.progress.loss is not None else ""


def _to_go(it: Overview, now: float) -> str:
    left_s = remaining_s(it)
    return "" if left_s is None else span(left_s)


def _speed(it: Overview, now: float) -> str:
    p = it.progress
    if it.state is not RunState.RUNNING:
        return ""
    if p.tokens_per_s:
        return f"{short(p.tokens_per_s)} tok/s"
    if p.samples_per_s:
        return f"{short(p.samples_per_s)} spl/s"
    return f"{p.step_s:.3g} s/step" if p.step_s else ""


def _ettr(it: Overview, now: float) -> str:
    return f"{it.progress.ettr:.1%}" if it.progress.ettr is not None else ""


def _lag(it: Overview, now: float) -> str:
    p = it.progress
    behind = p.step - p.saved_step
    return f"{behind:,}" if p.saved_step and behind > 0 else ""


def _saved(it: Overview, now: float) -> str:
    when = it.progress.saved_time
    return f"{span(now - when)} ago" if when is not None else ""


def _wait(it: Overview, now: float) -> str:
    share = it.progress.data_wait
    return f"{share:.0%}" if it.state is RunState.RUNNING and share is not None else ""


def _restarts(it: Overview, now: float) -> str:
    return str(sum(it.progress.interruptions.values()) or "")


COLUMNS = (
    TopColumn("step", "the last step, of all", _step),
    TopColumn("loss", "the newest loss", _loss),
    TopColumn("to go", "time to the last step at the present speed", _to_go),
    TopColumn("speed", "tokens, samples (spl) or seconds of a step", _speed),
    TopColumn("ETTR", "share of all time that went into steps which count", _ettr),
    TopColumn("lag", "steps since the newest durable checkpoint", _lag),
    TopColumn("restarts", "number of interruptions so far", _restarts),
    TopColumn("saved", "age of the newest durable checkpoint", _saved),
    TopColumn("wait", "share of a step spent waiting for data", _wait),
)
"""The columns after name and state, the most important first."""


def table_of(
    runs: Sequence[Overview],
    chosen: int,
    causes: Sequence[str],
    width: int,
    now: float,
) -> Table:
    """Return the table of these runs in `width` columns of the terminal; what does not fit is left
    out, the least important column first.

    Args:
        chosen: the number of the selected run.
        causes: what happened to each run last; shown if there is much space.
    """
    gap = 1 if width < _NARROW else _GAP
    cells = {column.name: [column.text(it, now) for it in runs] for column in COLUMNS}
    wide = {name: max(map(len, [name, *texts])) for name, texts in cells.items() if any(texts)}
    names = max([len(it.run.name) for it in runs] or [0], default=0)
    states = max([len(it.word) for it in runs] or [0], default=0)
    name_s, state_s = max(names, 3), max(states, 5)
    shown = _fitting(wide, width - state_s - gap, min(name_s, _LEAST_NAME), gap)
    left = width - state_s - gap - sum(wide[name] + gap for name in shown)
    name_s = min(name_s, left)
    cause_s = left - name_s - gap
    has_causes = cause_s >= _LEAST_CAUSE and any(causes)

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    table.add_column("run", width=name_s, no_wrap=True)
    table.add_column("state", width=state_s, no_wrap=True)
    for name in shown:
        table.add_column(name, width=wide[name], justify="right", no_wrap=True)
    if has_causes:
        table.add_column("last cause", width=cause_s, no_wrap=True, overflow="ellipsis")
    for number, it in enumerate(runs):
        row: list[str | Text] = [shortened(clean(it.run.name), name_s), word_of(it)]
        row += [cells[name][number] for name in shown]
        row += [causes[number]] if has_causes else []
        table.add_row(*map(_plain, row), style="reverse" if number == chosen else "")
    return table


def shortened(name: str, width: int) -> str:
    """Return a name without its middle if it is too long, as both ends tell runs apart."""
    if len(name) <= width:
        return name
    end = max(0, min(8, (width - 1) // 2))
    return f"{name[: width - 1 - end]}…{name[len(name) - end :]}"


def short(value: float) -> str:
    """Format a number in at most five characters: "950", "12.3k", "1.2M"."""
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g}{name}"
    return f"{value:.3g}"


def _fitting(wide: dict[str, int], width: int, name: int, gap: int) -> list[str]:
    """Return the columns that fit beside a name of this width, in their order."""
    shown, used = [], name
    for column in COLUMNS:
        if column.name in wide and used + gap + wide[column.name] <= width:
            shown.append(column.name)
            used += gap + wide[column.name]
    return shown


def _plain(cell: str | Text) -> Text:
    """Return a cell as text, in which nothing is markup."""
    return cell if isinstance(cell, Text) else Text(cell)
