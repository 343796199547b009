"""What several pages say of a run: its state, its last cause, its speed, its small curve. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpckit.report.overview import Overview
from hpckit.report.page.series_downsampling import Point
from hpckit.report.remaining_time import remaining_s
from hpckit.report.run_state import RunState
from hpckit.serve.pages.html_elements import Html, joined, tag
from hpckit.serve.run_reader import ReadRun
from hpckit.text.quantities import ago, rate, span

_MOODS = {
    **dict.fromkeys(("running", "done"), "good"),
    "starting": "busy",
    **dict.fromkeys(("queued", "waiting", "stopped", "unknown"), "idle"),
}
_WIDE, _HIGH, _EDGE = 100.0, 30.0, 2.0
_USUAL, _MANY = 0.95, 20
"""Share of the values up to which heights differ, if there are so many."""


def mood_of(read: ReadRun) -> str:
    """Return how good the state of a run is: `good`, `busy`, `idle` or `bad`."""
    return "bad" if read.overview is None else _MOODS.get(read.overview.word, "bad")


def state_badge(read: ReadRun) -> Html:
    """Return the state in one word, with its colour."""
    word = "unreadable" if read.overview is None else read.overview.word
    return tag("span", word, class_=f"state {mood_of(read)}")


def step_words(it: Overview) -> str:
    """Return the step, of how many; empty: none is known."""
    p = it.progress
    if it.is_silent or (p.begun is None and not p.step):
        return ""
    return f"{p.step:,} of {p.steps:,}" if p.steps else f"{p.step:,}"


def speed_words(it: Overview) -> tuple[str, str]:
    """Return steps, and tokens or samples, per time; empty unless the run trains now."""
    p = it.progress
    if it.state is not RunState.RUNNING or not p.step_s:
        return "", ""
    if p.tokens_per_s:
        return rate(p.step_s), f"{p.tokens_per_s:,.0f} tokens/s"
    return rate(p.step_s), f"{p.samples_per_s:,.4g} samples/s" if p.samples_per_s else ""


def remaining_words(it: Overview) -> str:
    """Return how long the run still trains; empty: not known, or it does not train."""
    left_s = remaining_s(it)
    return "" if left_s is None else span(left_s)


def saved_words(it: Overview, now: float) -> tuple[str, str]:
    """Return the step of the newest checkpoint and its age; empty if there is none."""
    p = it.progress
    return (f"step {p.saved_step:,}", ago(p.saved_time, now)) if p.saved_step else ("", "")


def over_note(words: tuple[str, str]) -> Html | None:
    """Return the first text with the second one below it in small letters."""
    first, second = words
    if not first:
        return None
    return joined(tag("span", first), tag("span", second, class_="note") if second else None)


def small_picture(points: Sequence[Point], title: str, kind: str = "") -> Html:
    """Return a curve without axes; lines at the top are at steps whose value is not finite. Of many
    values the highest ones have the same height, so that a spike does not flatten the others."""
    known = [value for _, value in points if value is not None and math.isfinite(value)]
    if len(points) < 2 or not known:
        return Html("")
    first, last = points[0][0], points[-1][0]
    usual = _USUAL if len(known) >= _MANY else 1.0
    low, high = min(known), sorted(known)[int(usual * (len(known) - 1))]

    def x(step: int) -> float:
        return _EDGE + (_WIDE - 2 * _EDGE) * (step - first) / max(1, last - first)

    def y(value: float) -> float:
        share = (min(value, high) - low) / (high - low) if high > low else 0.5
        return _HIGH - _EDGE - (_HIGH - 2 * _EDGE) * share

    parts, line = [], []
    for step, value in [*points, (last, None)]:
        if value is not None:
            line.append(f"{x(step):.1f},{y(value):.1f}")
        else:
            parts += [tag("polyline", points=" ".join(line))] if line else []
            line = []
    odd = [f"{x(step):.1f}" for step, value in points if value is None]
    parts += [tag("line", x1=at, y1="1", x2=at, y2="6") for at in odd]
    return tag(
        "svg",
        *parts,
        class_=f"spark {kind}".strip(),
        role="img",
        aria_label=title,
        viewBox=f"0 0 {_WIDE:g} {_HIGH:g}",
        preserveAspectRatio="none",
    )
