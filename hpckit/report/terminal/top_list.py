"""The order of the runs that `hpckit top` lists, and which of them it lists. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpckit.report.overview import Overview
from hpckit.report.remaining_time import remaining_s

_LAST = float("inf")
SORTS: dict[str, Callable[[Overview], Any]] = {
    "name": lambda it: it.run.name,
    "state": lambda it: (not it.is_alive, it.word, it.run.name),
    "newest step": lambda it: -(it.progress.step_time or 0.0),
    "progress": lambda it: -_done(it),
    "to go": lambda it: _or_last(remaining_s(it)),
    "loss": lambda it: _or_last(it.progress.loss),
    "ETTR": lambda it: _or_last(it.progress.ettr),
}
"""The key of each order by its name; runs for which it is not known are the last ones."""


def listed(runs: Sequence[Overview], sort: str, words: str, *, is_reversed: bool) -> list[Overview]:
    """Return the runs that match, in an order of `SORTS`.

    Args:
        words: words of which each is in the name or the state of a run, in any case.
    """
    wanted = words.casefold().split()
    found = [it for it in runs if all(word in _text(it) for word in wanted)]
    return sorted(found, key=SORTS[sort], reverse=is_reversed)


def _text(it: Overview) -> str:
    return f"{it.run.name} {it.word}".casefold()


def _done(it: Overview) -> float:
    p = it.progress
    return p.step / p.steps if p.steps else 0.0


def _or_last(value: float | None) -> float:
    return value if value is not None and value == value else _LAST
