"""Plots how models scale: speed and efficiency over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from hpckit.cli.bench.scaling_figures import EFFICIENT, ScalingPoint, doubt

matplotlib.use("Agg")

# Okabe and Ito's colours, which most people can tell apart.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_GREY = "#b0b7bf"


def draw(points: Mapping[str, Sequence[ScalingPoint]], title: str, path: Path) -> None:
    """Draw the plot in the format that the ending of `path` names.

    Raises:
        ValueError: matplotlib does not know the ending.
        OSError: it cannot be written.
    """
    figure = Figure(figsize=(10, 4.5), dpi=120, layout="constrained")
    speed, share = figure.subplots(1, 2)
    colours = [_COLOURS[number % len(_COLOURS)] for number in range(len(points))]
    for (model, own), colour in zip(points.items(), colours, strict=True):
        _draw_speed(speed, model, own, colour)
        _draw_shares(share, model, own, colour)
    speed.set_yscale("log", base=2)
    speed.yaxis.set_major_formatter(ScalarFormatter())
    speed.set_ylabel("samples per second, over those of the fewest ranks")
    share.axhline(EFFICIENT, color=_GREY, linewidth=1)
    share.set_ylim(0, max(1.05, *share.get_ylim()))
    share.set_ylabel("efficiency; dotted: share of communication")
    for axes in (speed, share):
        _finish(axes, sorted({one.world.ranks for own in points.values() for one in own}))
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _draw_speed(axes: Axes, model: str, own: Sequence[ScalingPoint], colour: str) -> None:
    ranks = [one.world.ranks for one in own]
    ideal = [count / ranks[0] for count in ranks]
    axes.plot(ranks, ideal, "--", color=_GREY, linewidth=1)
    relative = [one.samples_per_s / own[0].samples_per_s for one in own]
    axes.plot(ranks, relative, "o-", color=colour, linewidth=1.4, label=model)


def _draw_shares(axes: Axes, model: str, own: Sequence[ScalingPoint], colour: str) -> None:
    ranks = [one.world.ranks for one in own]
    if doubt(own):
        axes.plot([], [], "o-", color=colour, label=f"{model}: not to be trusted")
    else:
        axes.plot(ranks, [one.efficiency(own[0]) for one in own], "o-", color=colour, label=model)
    known = [(one.world.ranks, one.communication) for one in own if one.communication is not None]
    axes.plot(*zip(*known, strict=True), "o:", color=colour, linewidth=1.4, markersize=3)


def _finish(axes: Axes, ranks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
