"""The elements of a page, independent of HTML or Markdown. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class TextBlock:
    """A paragraph."""

    words: str
    is_alert: bool = False
    """Whether it is about something missing or wrong."""


@dataclass(frozen=True)
class FactsBlock:
    """Named lines."""

    rows: Sequence[tuple[str, str]]
    are_key: bool = False
    """Whether they are what most readers look for first."""


@dataclass(frozen=True)
class CommandsBlock:
    """Commands to type."""

    lines: Sequence[str]


@dataclass(frozen=True)
class TableBlock:
    """Cells of text; those of the columns `words` are not numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()
    kinds: Sequence[str] = ()
    """The colour of each row in the preceding picture; empty: rows have none."""
    are_cards: bool = False
    """Whether rows become cards on a narrow screen, because they have texts; other tables are
    moved sideways there."""
    has_names: bool = False
    """Whether the first column names the rows, and stays in place when the table is moved."""

    @property
    def filled(self) -> TableBlock:
        """The table without the columns that are empty in all rows."""
        kept = [at for at, _ in enumerate(self.head) if any(row[at] for row in self.rows)]
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, head=tuple(self.head[at] for at in kept), rows=rows)


@dataclass(frozen=True)
class PlotLine:
    """One curve of a plot."""

    name: str
    points: Sequence[tuple[float, float | None]]
    """A step, or another number, and its value; None: a gap."""
    kind: str
    """Its colour, as in `hpckit.report.page.colour_meanings`."""
    are_dots: bool = False
    has_dots: bool = False
    """Whether the points of the line are marked."""
    is_faint: bool = False
    """Whether it is the background of a line that says the same more clearly."""
    may_leave: bool = False
    """Whether its values do not widen the axis: those beyond the other lines are at its edge."""


@dataclass(frozen=True)
class PlotMark:
    """A step at which something happened."""

    step: int
    name: str
    """A short name: there may be many marks."""
    words: str
    kind: str
    """Its colour, as that of a line."""


@dataclass(frozen=True)
class Plot:
    """Curves over steps, or over another number."""

    title: str
    unit: str
    lines: Sequence[PlotLine]
    marks: Sequence[PlotMark] = ()
    from_zero: bool = False
    steps: tuple[int, int] | None = None
    """The least range of steps that it shows, so that plots of one run have the same."""
    has_choice: bool = False
    """Whether a reader can choose between a linear and a logarithmic axis."""
    is_detail: bool = False
    """Whether it repeats a part of another plot, larger."""
    over: str = "step"
    """What the horizontal axis counts."""
    is_over_log: bool = False
    """Whether the horizontal axis is logarithmic if its numbers differ much; else it begins
    at 0."""


@dataclass(frozen=True)
class PlotsBlock:
    """Plots that stand side by side where there is room."""

    plots: Sequence[Plot]


@dataclass(frozen=True)
class Stretch:
    """A part of a lane, in seconds since the begin of the picture."""

    begin_s: float
    end_s: float
    kind: str
    """Its colour, as that of a line."""
    words: str


@dataclass(frozen=True)
class Lane:
    """A row of a timeline."""

    name: str
    stretches: Sequence[Stretch]


@dataclass(frozen=True)
class TimelineBlock:
    """Lanes on a common time axis."""

    title: str
    lanes: Sequence[Lane]
    seconds: float
    origin: str
    """The begin of the time axis as text."""
    kinds: Sequence[tuple[str, str]]
    """Each kind of stretch with its description."""


@dataclass(frozen=True)
class SharePart:
    """A part of a whole."""

    name: str
    value: float
    kind: str
    """Its colour, as that of a line."""


@dataclass(frozen=True)
class SharesBlock:
    """Parts of a whole, as one bar; or of several, as bars of lengths that can be compared. A table
    with their numbers follows it."""

    title: str
    bars: Sequence[tuple[str, Sequence[SharePart]]]
    """The name of each bar, empty if there is one, and its parts."""


@dataclass(frozen=True)
class BarsBlock:
    """Stacked bars, each with the same named parts."""

    title: str
    unit: str
    parts: Sequence[str]
    """Names of the parts, in the order in which they are stacked."""
    bars: Sequence[tuple[str, Sequence[float]]]
    """Each bar's name and the sizes of its parts, in `unit`."""
    limit: tuple[str, float] | None = None
    """Name and value of a limit that is drawn across all bars."""


Block = (
    TextBlock
    | FactsBlock
    | CommandsBlock
    | TableBlock
    | Plot
    | PlotsBlock
    | TimelineBlock
    | SharesBlock
    | BarsBlock
)


@dataclass(frozen=True)
class Section:
    """A heading with its blocks."""

    title: str
    blocks: Sequence[Block]
    inner: Sequence[Section] = ()
    is_folded: bool = False
    """Whether it is folded: a whole run among several, shown on demand."""


@dataclass(frozen=True)
class PageDocument:
    """A page."""

    title: str
    as_of: str
    sections: Sequence[Section]
