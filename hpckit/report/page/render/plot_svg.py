"""Plots of curves over steps as SVG. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from hpckit.report.page.page_document import Plot, PlotLine, PlotMark
from hpckit.report.page.render.plot_axes import (
    Axis,
    axis,
    is_wide,
    label,
    may_be_log,
    span_axis,
)
from hpckit.report.page.render.svg_elements import escaped, line, percent, picture, words

_TOP, _HIGH, _BELOW = 34.0, 210.0, 40.0  # pixels
_ACROSS = 1000.0  # units of the inner picture, whatever its width
_APART = 0.05  # share of the width: names of marks nearer to each other are left out
_FAR_APART = 0.16  # as above, on a narrow screen
_TICKS = 5
_COLUMNS = 50
"""Number of parts of the width of which each shows its values to a mouse."""
_MOST_MARKS = 200


def draw_plot(plot: Plot, *, is_log: bool | None = None) -> str:
    """Draw the curves of `plot`, of which at least one point is finite.

    Args:
        is_log: whether the axis of values is logarithmic; None: as suits them.
    """
    x, y = _axes(plot, is_log)
    marks = plot.marks[-_MOST_MARKS:]
    parts = [*_frame(plot, x, y), *_marks(marks, x)]
    parts.append(
        f'<svg x="0" y="{_TOP:g}" width="100%" height="{_HIGH:g}" '
        f'viewBox="0 0 {_ACROSS:g} {_HIGH:g}" preserveAspectRatio="none">'
    )
    for one in plot.lines:
        parts += _draw_line(one, x, y)
    parts.append("</svg>")
    parts += _readings(plot, x)
    return picture(plot.title, _TOP + _HIGH + _BELOW, parts)


def default_is_log(plot: Plot) -> bool:
    """Return whether the axis of values is logarithmic where the reader has not chosen."""
    low, high = _range(plot)
    return not plot.from_zero and is_wide(low, high)


def can_be_log(plot: Plot) -> bool:
    """Return whether the axis of values may be logarithmic."""
    return may_be_log(_range(plot)[0])


def _range(plot: Plot) -> tuple[float, float]:
    staying = [v for one in plot.lines if not one.may_leave for _, v in one.points if v is not None]
    values = staying or [v for one in plot.lines for _, v in one.points if v is not None]
    return min(values), max(values)


def _axes(plot: Plot, is_log: bool | None) -> tuple[Axis, Axis]:
    steps = [step for one in plot.lines for step, _ in one.points] + [m.step for m in plot.marks]
    if plot.steps is not None:
        steps += plot.steps
    first = min(steps) if plot.steps is not None else 0
    least = 1.0 if all(float(step).is_integer() for step in steps) else 0.0
    over = span_axis(max(steps), _TICKS, first, least_step=least)
    if plot.is_over_log and is_wide(min(steps), max(steps)):
        over = axis(min(steps), max(steps), _TICKS, is_log=True)
    low, high = _range(plot)
    is_log = default_is_log(plot) if is_log is None else is_log and can_be_log(plot)
    low = min(0.0, low) if plot.from_zero and not is_log else low
    return over, axis(low, high, _TICKS, is_log=is_log)


def _frame(plot: Plot, x: Axis, y: Axis) -> Iterator[str]:
    bottom = _TOP + _HIGH
    scale = f"{plot.unit}, logarithmic" if y.is_log else plot.unit
    yield words("0%", 12, scale, kind="name")
    for tick in y.ticks:
        at = bottom - y.at(tick) * _HIGH
        yield line("0%", at, "100%", at, "grid")
        yield words("-6", at + 4, label(tick, y.ticks), "end")  # the page leaves room there
    for number, tick in enumerate(x.ticks):
        at_x, kind = percent(x.at(tick)), "minor" if number % 2 else ""
        yield line(at_x, bottom, at_x, bottom + 4, "axis")
        yield words(at_x, bottom + 17, label(tick, x.ticks), "middle", kind)
    yield line("0%", bottom, "100%", bottom, "axis")
    over = f"{plot.over}, logarithmic" if x.is_log else plot.over
    yield words("100%", bottom + 34, over, "end", "name")


def _marks(marks: Sequence[PlotMark], x: Axis) -> Iterator[str]:
    named, far = -1.0, -1.0
    for mark in sorted(marks, key=lambda mark: mark.step):
        share = x.at(mark.step)
        ends = percent(share), _TOP, percent(share), _TOP + _HIGH
        yield line(*ends, f"mark {mark.kind}", mark.words)
        if mark.name and (share - named >= _APART or named < 0):
            named, is_far = share, share - far >= _FAR_APART or far < 0
            far = share if is_far else far
            anchor = "start" if share < _APART else "end" if share > 1 - _APART else "middle"
            kind = f"mark {mark.kind}" + ("" if is_far else " minor")
            yield words(percent(share), _TOP - 5, mark.name, anchor, kind)


def _draw_line(one: PlotLine, x: Axis, y: Axis) -> Iterator[str]:
    kind = f"{one.kind} behind" if one.is_faint else one.kind
    pieces: list[list[str]] = [[]]
    for step, value in one.points:
        if value is None:
            pieces.append([])
        else:
            down = min(1.0, max(0.0, 1 - y.at(max(value, y.low) if y.is_log else value)))
            across = min(1.0, max(0.0, x.at(step)))
            pieces[-1].append(f"{across * _ACROSS:.1f} {down * _HIGH:.1f}")
    whole = [piece for piece in pieces if piece]
    if not one.are_dots:
        drawn = "".join(f"M{'L'.join(piece)}" for piece in whole if len(piece) > 1)
        if drawn:
            yield f'<path class="line {kind}" d="{drawn}"/>'
    single = [piece for piece in whole if one.are_dots or one.has_dots or len(piece) == 1]
    dots = "".join(f"M{point}h0" for piece in single for point in piece)
    if dots:
        shape = "dots single" if len(one.points) == 1 else "dots"
        yield f'<path class="{shape} {kind}" d="{dots}"/>'


def _readings(plot: Plot, x: Axis) -> Iterator[str]:
    """Yield columns without a colour that say, to a mouse, what is drawn in them."""
    named = [one for one in plot.lines if one.name]
    steps = [[step for step, _ in one.points] for one in named]
    for number in range(_COLUMNS):
        begin, end = (x.value(one / _COLUMNS) for one in (number, number + 1))
        begin = begin if number else -math.inf  # the first column has its left edge, too
        end = end if number + 1 < _COLUMNS else math.inf
        found = []
        for one, own in zip(named, steps, strict=True):
            at = bisect_right(own, end) - 1
            if at >= 0 and own[at] > begin and (value := one.points[at][1]) is not None:
                found.append(f"{one.name}: {value:.5g} at {_place(plot, own[at])}")
        found += [mark.words for mark in plot.marks[-_MOST_MARKS:] if begin < mark.step <= end]
        if found:
            place = f'x="{percent(number / _COLUMNS)}" y="{_TOP:g}" width="{100 / _COLUMNS:g}%"'
            title = "\n".join(escaped(text) for text in found)
            yield f'<rect class="reading" {place} height="{_HIGH:g}"><title>{title}</title></rect>'


def _place(plot: Plot, at: float) -> str:
    """Name a place on the axis below a plot: "step 1,000", "epoch 2", "4 ranks"."""
    number = f"{at:,.0f}" if at % 1 == 0 else f"{at:,.5g}"
    is_ordinal = plot.over in ("step", "epoch")
    return f"{plot.over} {number}" if is_ordinal else f"{number} {plot.over}"


def last_value(points: Sequence[tuple[float, float | None]]) -> str:
    """Return the last finite value as text; empty if there is none."""
    known = [value for _, value in points if value is not None]
    return label(known[-1]) if known else ""
