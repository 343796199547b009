"""Plots of the curves of one run, or of several in one plot. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hpckit.events.schema import Event
from hpckit.report.history import names_of
from hpckit.report.page.colour_meanings import Meaning, of_run
from hpckit.report.page.curve_values import Curve, curve_of, values_of
from hpckit.report.page.page_content import PageContent
from hpckit.report.page.page_document import Plot, PlotLine, PlotMark
from hpckit.text.quantities import span_s

_FAR = 0.3
"""Share of the last step up to which the plots of a run begin at step 0, though its first record is
of a later one."""


def loss_plot(it: PageContent) -> Plot | None:
    """Return the plot of the loss. None: no loss is finite."""
    is_smoothed, inherited = bool(it.smoothed.points), it.family.inherited
    lines = [
        PlotLine(
            "repeated later, or lost", it.again.points, Meaning.LOST, are_dots=True, may_leave=True
        ),
        PlotLine("loss", it.loss.points, Meaning.TRAIN, is_faint=is_smoothed),
        PlotLine("loss, smoothed", it.smoothed.points, Meaning.TRAIN),
        PlotLine("validation", it.validation.points, Meaning.VALIDATION, has_dots=True),
    ]
    if inherited is not None:
        lines.insert(0, PlotLine("before the fork", inherited.points, Meaning.PARENT))
    for name, curve in it.evaluation:
        if name.endswith("loss"):
            lines.append(PlotLine(name, curve.points, Meaning.EVALUATION, has_dots=True))
    found = _plot("Loss over steps", "loss", lines, (*marks(it), *cure_marks(it)))
    return found and replace(found, has_choice=True, steps=steps_of(it))


def optimizer_plots(it: PageContent) -> list[Plot]:
    """Return the plots of the gradient norm and of the learning rate, as far as they are known."""
    curves = (("Gradient norm", it.norm), ("Learning rate", it.rate))
    found = (
        _plot(
            f"{name} over steps",
            curve.unit,
            [PlotLine(curve.unit, curve.points, Meaning.TRAIN)],
            cure_marks(it) if curve is it.norm else (),
            from_zero=curve is it.rate,
        )
        for name, curve in curves
    )
    return [replace(plot, steps=steps_of(it)) for plot in found if plot is not None]


def speed_plot(it: PageContent) -> Plot | None:
    """Return the plot of the speed. None: no step was recorded."""
    line = PlotLine(it.speed.unit, it.speed.points, Meaning.TRAIN)
    found = _plot("Speed over steps", it.speed.unit, [line], marks(it), from_zero=True)
    return found and replace(found, steps=steps_of(it))


def evaluation_plots(it: PageContent) -> list[Plot]:
    """Return a plot for each metric of evaluations that has a finite value."""
    plots = (
        _plot(
            f"{name} over steps",
            name,
            [PlotLine(name, curve.points, Meaning.EVALUATION, has_dots=True)],
        )
        for name, curve in it.evaluation
    )
    return [replace(plot, steps=steps_of(it)) for plot in plots if plot is not None]


def part_of_loss(it: PageContent, first: int, last: int) -> Plot | None:
    """Return the loss from one step to another, larger. None: there is no finite one."""
    again = ((event.step, event) for event in it.history.repeated)
    lines = [
        _closely("repeated later, or lost", again, Meaning.LOST, (first, last)),
        _closely("loss", it.history.kept.items(), Meaning.TRAIN, (first, last)),
    ]
    title = f"Loss from step {first:,} to {last:,}"
    found = _plot(title, title[0].lower() + title[1:], lines, cure_marks(it, first, last))
    return found and replace(found, steps=(first, last), is_detail=True)


def overlaid(
    title: str,
    unit: str,
    curves: Sequence[tuple[str, Curve]],
    behind: Sequence[Curve] = (),
    *,
    from_zero: bool = False,
) -> Plot | None:
    """Return a plot with one line per run, with its name and a colour by its place; runs with
    another unit are left out. None: no run has a value.

    Args:
        behind: a curve of each run that is drawn faintly behind its own, such as the one that the
            own was smoothed from.
    """
    lines = [
        PlotLine(name, curve.points, of_run(number))
        for number, (name, curve) in enumerate(curves)
        if curve.unit == unit
    ]
    faint = [
        PlotLine("", curve.points, of_run(number), is_faint=True)
        for number, curve in enumerate(behind)
    ]
    return _plot(title, unit, [*faint, *lines], from_zero=from_zero)


def steps_of(it: PageContent) -> tuple[int, int] | None:
    """Return the first and the last step that plots of the run show; None: none is known."""
    curves = [it.loss, it.speed, *([it.family.inherited] if it.family.inherited else [])]
    steps = [step for curve in curves for step, _ in curve.points]
    if not steps:
        return None
    first, last = min(steps), max(steps)
    return (0 if first <= _FAR * last else first), last


def marks(it: PageContent) -> Iterator[PlotMark]:
    """Yield marks at the run's interruptions, named after the attempt that each has ended, and
    where it was forked."""
    if it.overview.fork is not None:
        fork = it.overview.fork
        yield PlotMark(fork.step, "fork", f"forked from {fork}", Meaning.PARENT)
    lives = it.history.lives
    for name, gap in zip(names_of(lives)[:-1], it.history.interruptions, strict=True):
        words = f"end of {name} at step {gap.at_step:,}: {gap.end}, {span_s(gap.lost_s)} lost"
        yield PlotMark(gap.at_step, name, words, Meaning.LOST)


def cure_marks(it: PageContent, first: int = 0, last: int | None = None) -> Iterator[PlotMark]:
    """Yield marks at the spikes of these steps and at the updates that were left out."""
    steps = [(one.step, f"spike: {one.what}") for one in it.history.spikes]
    steps += [(one.step, f"update left out: {one.what}") for one in it.history.skipped_updates]
    for step, words in sorted(steps):
        if first <= step and (last is None or step <= last):
            yield PlotMark(step, "", f"step {step:,}: {words}", Meaning.CURE)


def _closely(
    name: str, records: Iterable[tuple[int, Event]], kind: Meaning, steps: tuple[int, int]
) -> PlotLine:
    """Return a line with a dot for each loss of these steps."""
    within = sorted(
        (pair for pair in records if steps[0] <= pair[0] <= steps[1]), key=lambda pair: pair[0]
    )
    return PlotLine(name, curve_of("loss", values_of(within, "loss")).points, kind, has_dots=True)


def _plot(
    title: str,
    unit: str,
    lines: Sequence[PlotLine],
    found: Iterable[PlotMark] = (),
    *,
    from_zero: bool = False,
) -> Plot | None:
    drawn = [one for one in lines if any(value is not None for _, value in one.points)]
    return Plot(title, unit, drawn, tuple(found), from_zero) if drawn else None
