"""The page that shows which run was forked from which, and at what step. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.report.cost.lineage import in_order, real_path
from hpckit.report.page.render.svg_elements import percent, picture
from hpckit.rundir.fork_record import ForkRecord
from hpckit.serve.pages.html_elements import Content, Html, joined, link, note, table, tag
from hpckit.serve.pages.page_shell import PageFrame, page
from hpckit.serve.pages.run_words import mood_of, state_badge, step_words
from hpckit.serve.run_reader import ReadRun
from hpckit.text.quantities import count

_ROW, _TOP, _LABEL = 46.0, 30.0, 11.0  # pixels
_LONGEST = 34  # characters of a name in the graph
_HEAD = ("run", "state", "begins with", "step", "loss")
_NUMBERS = frozenset(("step", "loss"))


@dataclass(frozen=True)
class LineageRow:
    """A run in the graph."""

    name: str
    read: ReadRun | None
    """None: a run that others were forked from, and that is not served."""
    first: int
    """The step that it begins with."""
    last: int
    """The newest step."""
    parent: int | None
    """The row that it was forked from."""


def families(runs: Sequence[ReadRun]) -> list[list[LineageRow]]:
    """Return the runs that belong together, each family in the order of a tree: a parent before its
    forks. Runs without relatives are left out."""
    by_path = {real_path(read.served.run.path): read for read in runs}
    forks = {
        path: read.overview.fork
        for path, read in by_path.items()
        if read.overview is not None and read.overview.fork is not None
    }
    parents = {path: _parent(fork, by_path) for path, fork in forks.items()}
    ordered = in_order([*by_path, *parents.values()], parents)
    related = {*parents, *parents.values()}
    found: dict[Path, list[Path]] = {}
    for path in ordered:
        if path in related:
            found.setdefault(_root(path, parents), []).append(path)
    return [
        [_row(path, by_path.get(path), members, parents, forks) for path in members]
        for members in found.values()
    ]


def _parent(fork: ForkRecord, served: Mapping[Path, ReadRun]) -> Path:
    """Return the run directory of a parent: where it was, or where the only run of its name is."""
    recorded = real_path(Path(fork.path))
    named = [path for path in served if path.name == recorded.name]
    return named[0] if recorded not in served and len(named) == 1 else recorded


def _root(path: Path, parents: Mapping[Path, Path]) -> Path:
    seen = {path}
    while (parent := parents.get(path)) is not None and parent not in seen:
        seen.add(parent)
        path = parent
    return path


def _row(
    path: Path,
    read: ReadRun | None,
    members: Sequence[Path],
    parents: Mapping[Path, Path],
    forks: Mapping[Path, ForkRecord],
) -> LineageRow:
    first = forks[path].step if path in forks else 0
    begins = [forks[one].step for one in members if parents.get(one) == path]
    reached = read.overview.progress.step if read and read.overview else 0
    parent = parents.get(path)
    number = members.index(parent) if parent in members and parent != path else None
    return LineageRow(path.name, read, first, max([first, reached, *begins]), number)


def lineage_page(frame: PageFrame, runs: Sequence[ReadRun], now: float) -> str:
    """Return the page."""
    found = families(runs)
    parts: list[Html] = []
    for rows in found:
        parts.append(tag("h2", rows[0].name))
        parts.append(tag("figure", draw(frame, rows), class_="lineage"))
        parts.append(table(_HEAD, [_cells(frame, row, rows) for row in rows], _NUMBERS))
    others = len(runs) - sum(row.read is not None for rows in found for row in rows)
    if others or not found:
        parts.append(note(f"{count(others, 'run')} without a fork and without a parent."))
    return page(frame, "Lineage", joined(*parts), now, here="lineage.html")


def draw(frame: PageFrame, rows: Sequence[LineageRow]) -> Html:
    """Return the graph: a bar of steps for each run, and a line down from the step of its parent at
    which it was forked."""
    most = max(1, *(row.last for row in rows))
    height = _TOP + _ROW * len(rows)
    parts, labels = list[str](), list[str]()
    for step, anchor in ((0, "start"), (most // 2, "middle"), (most, "end")):
        at = percent(step / most)
        parts.append(_line(at, 16, at, height, "grid"))
        parts.append(tag("text", f"{step:,}", x=at, y="11", text_anchor=anchor))
    for number, row in enumerate(rows):
        y = _TOP + _ROW * number + _LABEL + 12
        begin, end = percent(row.first / most), percent(row.last / most)
        if row.parent is not None:
            above = _TOP + _ROW * row.parent + _LABEL + 12
            parts.append(_line(begin, above, begin, y, "from"))
        kind = f"run {mood_of(row.read) if row.read else 'idle'}"
        parts.append(_line(begin, y, end, y, kind))
        labels.append(_label(frame, row, y - 12))
    title = "runs by steps, each with what it was forked from"
    return Html(picture(title, height, [*parts, *labels]))


def _label(frame: PageFrame, row: LineageRow, y: float) -> Html:
    name = row.name if len(row.name) <= _LONGEST else f"{row.name[: _LONGEST - 1]}…"
    text = tag("text", name, tag("title", row.name), x="0", y=f"{y:g}")
    return text if row.read is None else link(frame.run(row.read.key), text)


def _line(x1: str, y1: float, x2: str, y2: float, kind: str) -> Html:
    return tag("line", x1=x1, y1=f"{y1:g}", x2=x2, y2=f"{y2:g}", class_=kind)


def _cells(frame: PageFrame, row: LineageRow, rows: Sequence[LineageRow]) -> tuple[Content, ...]:
    read = row.read
    origin = "" if row.parent is None else f"step {row.first:,} of {rows[row.parent].name}"
    if read is None:
        return (row.name, "not served here", origin, "", "")
    name = tag("span", link(frame.run(read.key), read.name), class_="name")
    it = read.overview
    if it is None:
        return (name, state_badge(read), origin, "", "")
    loss = "" if it.progress.loss is None else f"{it.progress.loss:.4g}"
    return (name, state_badge(read), origin, step_words(it), loss)
