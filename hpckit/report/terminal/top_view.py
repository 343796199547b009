"""`hpckit top` on a screen of any size: the list of runs, one run closely, and the help. Pure."""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from hpckit.report.last_cause import last_cause
from hpckit.report.overview import Overview
from hpckit.report.run_state import RunState
from hpckit.report.straggler_summary import describe_cost
from hpckit.report.terminal.sparkline import sparkline
from hpckit.report.terminal.status_table import saved_words, step_words, word_of
from hpckit.report.terminal.top_columns import COLUMNS, short, table_of
from hpckit.text.quantities import clean

KEYS = (
    ("?", "help"),
    ("q", "quit"),
    ("enter", "open"),
    ("l", "log"),
    ("w", "why"),
    ("c", "cancel"),
    ("s", "sort"),
    ("/", "filter"),
)
"""Keys of the list and their short names, the most important first."""
RUN_KEYS = (
    ("?", "help"),
    ("q", "quit"),
    ("esc", "back"),
    ("l", "other log"),
    ("w", "why"),
    ("c", "cancel"),
)
"""Keys in a run that is open."""
HELP = (
    ("up, down, j, k", "select a run; g, G: the first, the last"),
    ("enter", "open the run: its curves and the end of its log; esc: back"),
    ("l", "the end of the supervisor's log; again, in an open run: of rank 0's"),
    ("w", "why it is in its state, and what to type next"),
    ("c", "cancel it, after a confirmation"),
    ("s, S", "sort by the next column; reverse the order"),
    ("/", "list only runs whose name or state has these words; esc: all"),
    ("q", "quit"),
)
_DATE = re.compile(r"^\d{4}-\d\d-\d\d (\d\d:\d\d:\d\d),\d{3}")
"""Date and time at the begin of a line of a log, of which the time of day is shown."""
_LABEL = 11
_LOW = 14
"""Number of lines of a screen below which there is one line for the last cause."""
_LEAST_ROWS = 3
_LEAST_CURVE = 8


@dataclass(frozen=True)
class ScreenSize:
    """The size of a terminal, and whether it can show other characters than ASCII's."""

    width: int = 80
    height: int = 24
    is_ascii: bool = False


@dataclass(frozen=True)
class RunCurves:
    """The newest records of a run, in the order of steps."""

    loss: Sequence[float] = ()
    speed: Sequence[float] = ()
    unit: str = ""
    """Of the speed."""


@dataclass(frozen=True)
class TopDetail:
    """What a user has asked for, below the list or an open run."""

    title: str
    lines: Sequence[str] = ()
    is_log: bool = False
    """Whether the end of the lines matters most, and long lines are cut."""


@dataclass(frozen=True)
class TopState:
    """What `hpckit top` shows now."""

    runs: Sequence[Overview]
    """The listed runs."""
    total: int
    """Number of all runs."""
    chosen: int = 0
    sort: str = "name"
    is_reversed: bool = False
    words: str = ""
    """The words by which runs are listed."""
    is_typing: bool = False
    """Whether the user types these words."""
    has_help: bool = False
    is_open: bool = False
    """Whether the selected run is open."""
    curves: RunCurves = field(default_factory=RunCurves)
    """Of the run that is open."""
    detail: TopDetail | None = None


def view_of(state: TopState, size: ScreenSize, now: float) -> RenderableType:
    """Return the whole screen, which is not larger than `size`.

    Args:
        now: seconds since the epoch.
    """
    if state.has_help:
        return _fitted([*_help(size)], size, _footer((("any key", "back"),), size))
    if not state.runs:
        nothing = [Text(line) for line in _wrapped(_nothing(state), size.width)]
        return _fitted([_head(state, size, now), *nothing], size, _bottom(state, size))
    if state.is_open:
        return _run_view(state, size, now)
    return _list_view(state, size, now)


def _list_view(state: TopState, size: ScreenSize, now: float) -> RenderableType:
    room = size.height - 2  # the first and the last line
    detail = state.detail
    if detail is None:
        below = _below(state, size, now)
        rows = max(1, room - 1 - len(below))
    else:
        rows = max(1, min(len(state.runs), max(_LEAST_ROWS, room // 3)))
        below = _detail_lines(detail, size, room - 1 - rows)
    first = max(0, min(state.chosen - rows // 2, len(state.runs) - rows))
    shown = state.runs[first : first + rows]
    causes = [last_cause(it, now) for it in shown]
    table = table_of(shown, state.chosen - first, causes, size.width, now)
    used = 2 + len(shown) + len(below)
    space = [Text("")] * max(0, size.height - 1 - used)
    return Group(_head(state, size, now), table, *below, *space, _bottom(state, size))


def _below(state: TopState, size: ScreenSize, now: float) -> list[RenderableType]:
    """Return what happened to the selected run last, and what stragglers cost, in a few lines."""
    it = state.runs[state.chosen]
    cause = last_cause(it, now)
    said = f"{it.word}: {cause}" if cause else ""
    most = 2 if size.height < _LOW else 3
    lines: list[RenderableType] = [Text(line) for line in _wrapped(said, size.width)[:most] if line]
    if size.height >= _LOW:
        costs = [text for one in state.runs for text in _straggler_costs(one)]
        lines += [_cut(Text(clean(text), style="yellow")) for text in costs[:3]]
    return [Text(""), *lines] if lines and size.height >= _LOW else lines


def _run_view(state: TopState, size: ScreenSize, now: float) -> RenderableType:
    it = state.runs[state.chosen]
    facts: list[RenderableType] = []
    for name, text in _facts(it, state.curves, size, now):
        if text:
            facts += _fact(name, text, size.width)
    room = size.height - 2  # the first and the last line
    parts = [_title(it, size, now), *facts[: room - room // 3 if state.detail else room]]
    if state.detail is not None:
        parts += _detail_lines(state.detail, size, size.height - 1 - len(parts))
    return _fitted(parts, size, _footer(RUN_KEYS, size))


def _facts(
    it: Overview, curves: RunCurves, size: ScreenSize, now: float
) -> Iterator[tuple[str, str]]:
    p = it.progress
    if p.begun is not None:
        yield "step", step_words(it, now)
    yield "loss", _curve(curves.loss, f"{p.loss:.4g}" if p.loss is not None else "", size)
    newest = f"{short(curves.speed[-1])} {curves.unit}" if curves.speed else ""
    yield "speed", _curve(curves.speed, newest, size)
    if p.validated is not None:
        yield "validated", p.validated
    yield "saved", saved_words(it, now)
    shares = {"ETTR": p.ettr, "training share": p.training_share, "data wait": p.data_wait}
    yield (
        "time",
        ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share is not None),
    )
    yield "last cause", last_cause(it, now)
    for text in (it.hang, p.wrong, *p.stragglers):
        yield "problem", text or ""


def _curve(values: Sequence[float], newest: str, size: ScreenSize) -> str:
    """Return a curve as a line with its newest and its first value."""
    if len(values) < 2:
        return newest
    first = f"from {short(values[0])}"
    width = min(60, size.width - _LABEL - len(newest) - len(first) - 5)
    if width < _LEAST_CURVE:
        return newest
    return f"{newest}  {sparkline(values, width, is_ascii=size.is_ascii)}  {first}"


def _detail_lines(detail: TopDetail, size: ScreenSize, room: int) -> list[RenderableType]:
    """Return a line with the title, and as many lines of the detail as there is room for."""
    if room < 1:
        return []
    head: RenderableType = Rule(Text(clean(detail.title)), align="left", style="dim")
    if detail.is_log:
        texts = (_DATE.sub(r"\1", clean(line)) for line in detail.lines)
        lines: list[RenderableType] = [_cut(Text(line)) for line in texts]
        return [head, *lines[max(0, len(lines) - room + 1) :]]
    wrapped = [Text(line) for text in detail.lines for line in _wrapped(text, size.width)]
    return [head, *wrapped[: room - 1]]


def _head(state: TopState, size: ScreenSize, now: float) -> Text:
    said = f"{state.total:,} run{'' if state.total == 1 else 's'}"
    if state.words or state.is_typing:
        said = f"{len(state.runs):,} of {said} with: {clean(state.words)}"
        said += "_" if state.is_typing else ""
    else:
        order = f"by {state.sort}{', reversed' if state.is_reversed else ''}"
        said += f", {order}"
    return _with_clock(Text(said, style="bold"), size, now)


def _title(it: Overview, size: ScreenSize, now: float) -> Text:
    return _with_clock(Text.assemble((clean(it.run.name), "bold"), "  ", word_of(it)), size, now)


def _with_clock(text: Text, size: ScreenSize, now: float) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    space = size.width - text.cell_len - len(clock)
    if space < 2:
        text.truncate(size.width, overflow="ellipsis")
        return text
    return Text.assemble(text, " " * space, (clock, "dim"))


def _nothing(state: TopState) -> str:
    if state.total:
        return "no run has these words in its name or state; esc lists all"
    return "no run yet; start one with hpckit launch"


def _bottom(state: TopState, size: ScreenSize) -> Text:
    if state.is_typing:
        return _footer((("enter", "keep"), ("esc", "all runs")), size)
    return _footer(KEYS, size)


def _footer(keys: Sequence[tuple[str, str]], size: ScreenSize) -> Text:
    """Return as many keys as fit on a line."""
    said = ""
    for key, name in keys:
        more = f"{'   ' if said else ''}{key}: {name}"
        if len(said) + len(more) > size.width:
            break
        said += more
    return Text(said, style="dim", no_wrap=True)


def _help(size: ScreenSize) -> Iterator[RenderableType]:
    yield Text("Keys", style="bold")
    for key, meaning in HELP:
        yield from _fact(key, meaning, size.width, label=16)
    if size.height >= len(HELP) + len(COLUMNS) + 4:
        yield Text("")
        yield Text("Columns, as many as fit", style="bold")
        for column in COLUMNS:
            yield from _fact(column.name, column.meaning, size.width, label=16)


def _fact(name: str, text: str, width: int, label: int = _LABEL) -> list[RenderableType]:
    """Return lines with a name before the first one."""
    if width < 2 * label + 8:
        lines = textwrap.wrap(f"{name}: {clean(text)}", width, subsequent_indent="  ")
        return [Text(line) for line in lines]
    wrapped = _wrapped(text, width - label)
    first = Text.assemble((f"{name:<{label}}", "bold"), wrapped[0] if wrapped else "")
    return [first, *(Text(" " * label + line) for line in wrapped[1:])]


def _fitted(parts: Iterable[RenderableType], size: ScreenSize, footer: Text) -> RenderableType:
    """Return the lines, cut to the height of the screen, and the footer on its last line."""
    shown = list(parts)[: size.height - 1]
    space = [Text("")] * (size.height - 1 - len(shown))
    return Group(*shown, *space, footer)


def _wrapped(text: str, width: int) -> list[str]:
    lines = clean(text).split("\n")
    return [part for line in lines for part in textwrap.wrap(line, max(8, width)) or [""]]


def _cut(text: Text) -> Text:
    text.no_wrap = True
    text.overflow = "ellipsis"
    return text


def _straggler_costs(it: Overview) -> list[str]:
    """Return a line that says what the stragglers of a run cost, if it has any now."""
    cost = it.progress.straggler_cost
    if it.state is not RunState.RUNNING or cost is None or not cost.ranks:
        return []
    return [f"{it.run.name}: {describe_cost(cost)}"]
