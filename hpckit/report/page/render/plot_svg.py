"""Plots of curves over steps as SVG. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpckit.report.page.page_document import Plot, PlotLine, PlotMark
from hpckit.report.page.render.plot_axes import Axis, axis, label, span_axis
from hpckit.report.page.render.svg_elements import line, percent, picture, words

COLOURS = 8
"""Number of colours that the page's style has; further lines repeat them, and are dashed."""
_TOP, _HIGH, _BELOW = 34.0, 210.0, 40.0  # pixels
_ACROSS = 1000.0  # units of the inner picture, whatever its width
_APART = 0.05  # share of the width: names of marks nearer to each other are left out
_TICKS = 5


def draw_plot(plot: Plot) -> str:
    """Draw the curves of `plot`, of which at least one point is finite."""
    x, y = _axes(plot)
    parts = [*_frame(plot, x, y), *_marks(plot.marks, x)]
    parts.append(
        f'<svg x="0" y="{_TOP:g}" width="100%" height="{_HIGH:g}" '
        f'viewBox="0 0 {_ACROSS:g} {_HIGH:g}" preserveAspectRatio="none">'
    )
    for one in plot.lines:
        parts += _draw_line(one, x, y)
    parts.append("</svg>")
    return picture(plot.title, _TOP + _HIGH + _BELOW, parts)


def kind_of(colour: int) -> str:
    """Return the class of the line with that number."""
    if colour < 0:
        return "aside"
    return f"c{colour % COLOURS}" + (f" dash{colour // COLOURS % 3}" if colour >= COLOURS else "")


def _axes(plot: Plot) -> tuple[Axis, Axis]:
    steps = [step for one in plot.lines for step, _ in one.points] + [m.step for m in plot.marks]
    values = [v for one in plot.lines for _, v in one.points if v is not None]
    low = min(0.0, *values) if plot.from_zero else min(values)
    return span_axis(max(steps), _TICKS), axis(
        low, max(values), _TICKS, may_be_log=not plot.from_zero
    )


def _frame(plot: Plot, x: Axis, y: Axis) -> Iterator[str]:
    bottom = _TOP + _HIGH
    scale = f"{plot.unit}, logarithmic" if y.is_log else plot.unit
    yield words("0%", 12, scale, kind="name")
    for tick in y.ticks:
        at = bottom - y.at(tick) * _HIGH
        yield line("0%", at, "100%", at, "grid")
        yield words("-6", at + 4, label(tick, y.ticks), "end")  # the page leaves room there
    for tick in x.ticks:
        at_x = percent(x.at(tick))
        yield line(at_x, bottom, at_x, bottom + 4, "axis")
        yield words(at_x, bottom + 17, label(tick, x.ticks), "middle")
    yield line("0%", bottom, "100%", bottom, "axis")
    yield words("100%", bottom + 34, "step", "end", "name")


def _marks(marks: Sequence[PlotMark], x: Axis) -> Iterator[str]:
    named = -1.0
    for mark in marks:
        share = x.at(mark.step)
        yield line(percent(share), _TOP, percent(share), _TOP + _HIGH, "mark", mark.words)
        if share - named >= _APART or named < 0:
            named = share
            yield words(percent(share), _TOP - 5, mark.name, "middle", "mark")


def _draw_line(one: PlotLine, x: Axis, y: Axis) -> Iterator[str]:
    kind = kind_of(one.colour)
    pieces: list[list[str]] = [[]]
    for step, value in one.points:
        if value is None:
            pieces.append([])
        else:
            down = min(1.0, max(0.0, 1 - y.at(value)))
            pieces[-1].append(f"{x.at(step) * _ACROSS:.1f} {down * _HIGH:.1f}")
    whole = [piece for piece in pieces if piece]
    if not one.are_dots:
        drawn = "".join(f"M{'L'.join(piece)}" for piece in whole if len(piece) > 1)
        if drawn:
            yield f'<path class="line {kind}" d="{drawn}"/>'
    single = [piece for piece in whole if one.are_dots or one.has_dots or len(piece) == 1]
    dots = "".join(f"M{point}h0" for piece in single for point in piece)
    if dots:
        yield f'<path class="dots {kind}" d="{dots}"/>'
