"""The page with all runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hpckit.report.last_cause import last_cause
from hpckit.serve.pages.html_elements import Content, Html, alert, joined, link, note, table, tag
from hpckit.serve.pages.page_shell import PageFrame, page
from hpckit.serve.pages.run_words import (
    over_note,
    remaining_words,
    saved_words,
    small_picture,
    speed_words,
    state_badge,
    step_words,
)
from hpckit.serve.run_reader import ReadRun
from hpckit.text.quantities import ago, count

_HEAD = ("run", "state", "step", "speed", "to go", "loss", "ETTR", "saved", "last cause")
_NUMBERS = frozenset(("step", "speed", "to go", "loss", "ETTR", "saved"))


def index_page(
    frame: PageFrame, runs: Sequence[ReadRun], problems: Sequence[str], now: float
) -> str:
    """Return the page.

    Args:
        problems: folders that could not be read.
        now: seconds since the epoch.
    """
    words = Counter("unreadable" if r.overview is None else r.overview.word for r in runs)
    summary = ", ".join(f"{number:,} {word}" for word, number in words.most_common())
    main = joined(
        note(f"{count(len(runs), 'run')}{': ' if summary else ''}{summary}"),
        *(alert(problem) for problem in problems),
        table(_HEAD, [_row(frame, read, now) for read in in_order(runs)], _NUMBERS)
        if runs
        else note("No run exists yet."),
    )
    return page(frame, "Runs", main, now, here="index.html")


def in_order(runs: Sequence[ReadRun]) -> list[ReadRun]:
    """Return the runs that are active first, then those that changed last."""

    def rank(read: ReadRun) -> tuple[int, float, str]:
        if read.overview is None:
            return 2, 0.0, read.name
        newest = read.overview.progress.step_time or read.overview.progress.begun or 0.0
        return (0 if read.overview.is_alive else 1), -newest, read.name

    return sorted(runs, key=rank)


def _row(frame: PageFrame, read: ReadRun, now: float) -> tuple[Content, ...]:
    name = tag("span", link(frame.run(read.key), read.name), class_="name")
    it = read.overview
    if it is None:
        empty = [None] * (len(_HEAD) - 3)
        return (name, state_badge(read), *empty, _cause(None, read.problem))
    p = it.progress
    origin = f"forked from step {it.fork.step:,} of {it.fork.run}" if it.fork else None
    forked = tag("span", origin, class_="note") if origin else None
    last = tag("span", ago(p.step_time, now), class_="note") if p.step_time else None
    return (
        joined(name, forked),
        state_badge(read),
        joined(step_words(it), _bar(p.step, p.steps), last),
        over_note(speed_words(it)),
        remaining_words(it),
        _loss(read),
        f"{p.ettr:.0%}" if p.ettr is not None else "",
        over_note(saved_words(it, now)),
        _cause(last_cause(it, now), read.problem),
    )


def _bar(step: int, steps: int | None) -> Html | None:
    if not steps:
        return None
    return tag("progress", max=str(steps), value=str(min(step, steps)), aria_label="progress")


def _loss(read: ReadRun) -> Html | None:
    loss = read.overview.progress.loss if read.overview else None
    if loss is None:
        return None
    return joined(small_picture(read.loss, "loss by step"), f"{loss:.4g}", by=" ")


def _cause(cause: str | None, problem: str | None) -> Html | None:
    if not cause and not problem:
        return None
    return joined(
        tag("span", cause, class_="cause") if cause else None,
        tag("span", problem, class_="cause bad") if problem else None,
    )
