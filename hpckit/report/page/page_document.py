"""What a page is made of, whether it is written as HTML or as Markdown. Plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpckit.report.page.series_downsampling import Point


@dataclass(frozen=True)
class TextBlock:
    """A paragraph."""

    words: str
    is_alert: bool = False
    """It tells of something that is missing or wrong."""


@dataclass(frozen=True)
class FactsBlock:
    """Named lines."""

    rows: Sequence[tuple[str, str]]
    are_key: bool = False
    """They are what most people look for first."""


@dataclass(frozen=True)
class CommandsBlock:
    """What to type."""

    lines: Sequence[str]


@dataclass(frozen=True)
class TableBlock:
    """Cells of text; those of `words` are no numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[str] = ()
    swatches: bool = False
    """Each row has the colour that its number has in the picture before it."""


@dataclass(frozen=True)
class PlotLine:
    """One curve of a plot."""

    name: str
    points: Sequence[Point]
    colour: int
    """Number of it, from 0; -1: of what does not count."""
    are_dots: bool = False
    has_dots: bool = False
    """A line, with its points marked."""


@dataclass(frozen=True)
class PlotMark:
    """A step at which something happened."""

    step: int
    name: str
    """Short: there may be many."""
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
    """A part of a lane; seconds since the beginning of the picture."""

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
    """Lanes over the same time."""

    title: str
    lanes: Sequence[Lane]
    seconds: float
    origin: str
    """When it begins, in words."""
    kinds: Sequence[tuple[str, str]]
    """Each kind of stretch, and what it is."""


@dataclass(frozen=True)
class SharesBlock:
    """Parts of a whole, as one bar; a table with their numbers follows it."""

    title: str
    parts: Sequence[tuple[str, float]]


Block = TextBlock | FactsBlock | CommandsBlock | TableBlock | Plot | TimelineBlock | SharesBlock


@dataclass(frozen=True)
class Section:
    """A heading, and what belongs to it."""

    title: str
    blocks: Sequence[Block]
    inner: Sequence[Section] = ()
    is_folded: bool = False
    """Of a whole run among several: it is there for who asks."""


@dataclass(frozen=True)
class PageDocument:
    """The page."""

    title: str
    as_of: str
    sections: Sequence[Section]
