"""The elements of a page, independent of HTML or Markdown. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpckit.report.page.series_downsampling import Point


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
    swatches: bool = False
    """Whether each row has the colour of its number in the preceding picture."""


@dataclass(frozen=True)
class PlotLine:
    """One curve of a plot."""

    name: str
    points: Sequence[Point]
    colour: int
    """Number of the colour, from 0; -1: of steps that do not count."""
    are_dots: bool = False
    has_dots: bool = False
    """Whether the points of the line are marked."""


@dataclass(frozen=True)
class PlotMark:
    """A step at which something happened."""

    step: int
    name: str
    """A short name: there may be many marks."""
    words: str


@dataclass(frozen=True)
class Plot:
    """Curves over steps."""

    title: str
    unit: str
    lines: Sequence[PlotLine]
    marks: Sequence[PlotMark] = ()
    from_zero: bool = False


@dataclass(frozen=True)
class Stretch:
    """A part of a lane, in seconds since the begin of the picture."""

    begin_s: float
    end_s: float
    kind: str
    """`train`, `start` or `lost`."""
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
class SharesBlock:
    """Parts of a whole, as one bar; a table with their numbers follows it."""

    title: str
    parts: Sequence[tuple[str, float]]


Block = TextBlock | FactsBlock | CommandsBlock | TableBlock | Plot | TimelineBlock | SharesBlock


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
