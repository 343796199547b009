"""The curves of a run, or of several over each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.report.history import names_of
from hpckit.report.page.page_content import Curve, PageContent
from hpckit.report.page.page_document import Plot, PlotLine, PlotMark


def loss_plot(it: PageContent) -> Plot | None:
    """None: no loss is a number."""
    lines = [
        PlotLine("done again later, or lost", it.again.points, colour=-1, are_dots=True),
        PlotLine("loss", it.loss.points, colour=0),
        PlotLine("validation", it.validation.points, colour=1, has_dots=True),
    ]
    return _plot("Loss over steps", "loss", lines, marks(it))


def speed_plot(it: PageContent) -> Plot | None:
    """None: no step was recorded."""
    line = PlotLine(it.speed.unit, it.speed.points, colour=2)
    return _plot("Speed over steps", it.speed.unit, [line], marks(it), from_zero=True)


def overlaid(
    title: str, unit: str, curves: Sequence[tuple[str, Curve]], *, from_zero: bool = False
) -> Plot | None:
    """One line each, by the name of its run, in the colour of its place; those of another unit are
    left out. None: none has a number."""
    lines = [
        PlotLine(name, curve.points, colour=number)
        for number, (name, curve) in enumerate(curves)
        if curve.unit == unit
    ]
    return _plot(title, unit, lines, from_zero=from_zero)


def marks(it: PageContent) -> tuple[PlotMark, ...]:
    """The run's interruptions, named as the life that each has ended."""
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
