"""The loss curve with the run's interruptions marked, as a PNG."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpckit.report.history import History, Interruption

matplotlib.use("Agg")

_INK, _GREY, _MARK, _HELD_OUT = "#1f4e79", "#b0b7bf", "#c0392b", "#d68910"


def draw_loss_curve(history: History, title: str, path: Path) -> bool:
    """Write the curve to `path`; False, and nothing is written, where no loss was logged."""
    points = [(s, e["loss"]) for s, e in sorted(history.kept.items()) if e.get("loss") is not None]
    if not points:
        return False
    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    again = [(e["step"], e["loss"]) for e in history.repeated if e.get("loss") is not None]
    if again:
        axes.plot(*zip(*again, strict=True), ".", color=_GREY, label="done again later")
    axes.plot(*zip(*points, strict=True), color=_INK, linewidth=1.4, label="kept")
    found = sorted(history.validated.items())
    if held_out := [(s, e["val_loss"]) for s, e in found if e.get("val_loss") is not None]:
        axes.plot(*zip(*held_out, strict=True), "o-", color=_HELD_OUT, markersize=4, label="val")
    _mark_generations(axes, history)
    for interruption in history.interruptions:
        _mark(axes, interruption)
    _mark_checkpoints(axes, history)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_title(title, loc="left", fontsize=11, pad=22)
    axes.set_xlim(0, 1.01 * max(history.steps_kept, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True


def _mark_generations(axes: Axes, history: History) -> None:
    for life in history.lives:
        middle = (life.start_step + life.end_step) / 2
        ranks = f"{life.world_size} rank{'s' if life.world_size != 1 else ''}"
        axes.annotate(
            f"generation {life.generation}, {ranks}",
            xy=(middle, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color="#555555",
        )


def _mark(axes: Axes, interruption: Interruption) -> None:
    axes.axvline(interruption.at_step, color=_MARK, linestyle="--", linewidth=1)
    axes.annotate(
        f"{interruption.end}\n{interruption.lost_s:.1f} s lost",
        xy=(interruption.at_step, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color=_MARK,
    )


def _mark_checkpoints(axes: Axes, history: History) -> None:
    steps = sorted({event["step"] for event in history.committed})
    if steps:
        axes.plot(
            steps,
            [0.015] * len(steps),
            "^",
            color="#2e7d32",
            markersize=5,
            transform=axes.get_xaxis_transform(),
            label="checkpoint",
        )
