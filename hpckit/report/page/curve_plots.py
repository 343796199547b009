"""Plots of the curves of one run, or of several in one plot. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.report.history import names_of
from hpckit.report.page.page_content import Curve, PageContent
from hpckit.report.page.page_document import Plot, PlotLine, PlotMark

_COLOURS = 3
"""Colours that the plots of metrics take in turn."""


def loss_plot(it: PageContent) -> Plot | None:
    """Return the plot of the loss. None: no loss is finite."""
    lines = [
        PlotLine("repeated later, or lost", it.again.points, colour=-1, are_dots=True),
        PlotLine("loss", it.loss.points, colour=0),
        PlotLine("validation", it.validation.points, colour=1, has_dots=True),
    ]
    return _plot("Loss over steps", "loss", lines, marks(it))


def speed_plot(it: PageContent) -> Plot | None:
    """Return the plot of the speed. None: no step was recorded."""
    line = PlotLine(it.speed.unit, it.speed.points, colour=2)
    return _plot("Speed over steps", it.speed.unit, [line], marks(it), from_zero=True)


def evaluation_plots(it: PageContent) -> list[Plot]:
    """Return a plot for each metric of evaluations that has a finite value."""
    plots = (
        _plot(
            f"{name} over steps",
            name,
            [PlotLine(name, curve.points, colour=number % _COLOURS, has_dots=True)],
        )
        for number, (name, curve) in enumerate(it.evaluation)
    )
    return [plot for plot in plots if plot is not None]


def overlaid(
    title: str, unit: str, curves: Sequence[tuple[str, Curve]], *, from_zero: bool = False
) -> Plot | None:
    """Return a plot with one line per run, with its name and a colour by its place; runs with
    another unit are left out. None: no run has a value."""
    lines = [
        PlotLine(name, curve.points, colour=number)
        for number, (name, curve) in enumerate(curves)
        if curve.unit == unit
    ]
    return _plot(title, unit, lines, from_zero=from_zero)


def marks(it: PageContent) -> tuple[PlotMark, ...]:
    """Return marks at the run's interruptions, named after the attempt that each has ended."""
    lives = it.history.lives
    return tuple(
        PlotMark(
            gap.at_step,
            name,
            f"end of {name} at step {gap.at_step:,}: {gap.end}, {gap.lost_s:.1f} s lost",
        )
        for name, gap in zip(names_of(lives)[:-1], it.history.interruptions, strict=True)
    )


def _plot(
    title: str,
    unit: str,
    lines: Sequence[PlotLine],
    found: Sequence[PlotMark] = (),
    *,
    from_zero: bool = False,
) -> Plot | None:
    drawn = [one for one in lines if any(value is not None for _, value in one.points)]
    return Plot(title, unit, drawn, found, from_zero) if drawn else None
