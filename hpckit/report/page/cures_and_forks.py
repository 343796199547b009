"""The spikes of a run and what was done about them, and the runs that it is related to by forks.
Pure."""

from __future__ import annotations

import shlex
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from hpckit.events.schema import SpikeFound, UpdateSkipped
from hpckit.report.page.curve_plots import part_of_loss
from hpckit.report.page.page_content import PageContent
from hpckit.report.page.page_document import (
    Block,
    CommandsBlock,
    PlotsBlock,
    TableBlock,
    TextBlock,
)
from hpckit.report.page.run_family import RelatedRun

_MOST_PLOTS = 4
_MOST_ROWS = 50
_AROUND = 25
"""Number of records that a plot of a spike shows before and after it."""


def cure_blocks(it: PageContent) -> Iterator[Block]:
    """Yield the spikes and the updates that were left out, with the loss around the newest ones.
    Nothing, if there are none."""
    found: list[SpikeFound | UpdateSkipped] = [*it.history.spikes, *it.history.skipped_updates]
    if not found:
        return
    found.sort(key=lambda one: (one.step, one.time))
    head = ("steps", "found", "cure", "samples")
    rows = [_row(one) for one in reversed(found[-_MOST_ROWS:])]
    yield TableBlock(head, rows, words=head, are_cards=True).filled
    if len(found) > _MOST_ROWS:
        yield TextBlock(f"And {len(found) - _MOST_ROWS:,} earlier ones.")
    if it.history.left_out:
        yield TextBlock("The samples that were left out, with their keys:")
        path = shlex.quote(str(it.overview.run.path))
        yield CommandsBlock((f"hpckit data where SHARDS --run {path} --skipped",))
    windows = _windows(it, found)[-_MOST_PLOTS:]
    if plots := [plot for window in windows if (plot := part_of_loss(it, *window)) is not None]:
        yield PlotsBlock(plots)


def _row(one: SpikeFound | UpdateSkipped) -> tuple[str, str, str, str]:
    begin, end = one.first_position, one.end_position
    positions = "" if begin is None or end is None else f"positions {begin:,} to {end - 1:,}"
    if isinstance(one, UpdateSkipped):
        cure = "its update was left out" if one.is_skipped else "none: too many were left out"
        return f"{one.step:,}", one.what, cure, positions
    steps = f"{one.first_step:,} to {one.step:,}" if one.first_step < one.step else f"{one.step:,}"
    cure = "went back and left its samples out" if one.is_left_out else "none: the run ended"
    return steps, one.what, cure, positions


def _windows(it: PageContent, found: Sequence[SpikeFound | UpdateSkipped]) -> list[tuple[int, int]]:
    """Return the first and the last step to show for each of these events, which are ordered by
    step. An event within the steps of an earlier one gets no window of its own."""
    steps = sorted({*it.history.kept, *(event.step for event in it.history.repeated)})
    windows: list[tuple[int, int]] = []
    for one in found:
        if windows and one.step <= windows[-1][1]:
            continue
        first = one.first_step if isinstance(one, SpikeFound) else one.step
        at, after = bisect_left(steps, first), bisect_right(steps, one.step)
        before = steps[max(0, at - _AROUND) : at]
        following = steps[after : after + _AROUND]
        windows.append((min([*before, first]), max([*following, one.step])))
    return windows


def family_blocks(it: PageContent) -> Iterator[Block]:
    """Yield the runs that the run was forked from, and the forks. Nothing, if there are none."""
    family = it.family
    if family.runs:
        head = ("run", "forked from", "state", "step", "loss")
        rows = tuple(map(_relative, family.runs))
        yield TableBlock(head, rows, words=("run", "forked from", "state")).filled
        paths = (str(one.overview.run.path) for one in family.runs)
        yield TextBlock("Their curves in one plot:")
        yield CommandsBlock((shlex.join(("hpckit", "report", *paths)),))
    if family.others:
        yield TextBlock(f"And {family.others:,} more.")
    for path in family.missing:
        words = f"{path}, which it descends from, no longer exists or may not be read."
        yield TextBlock(words, is_alert=True)


def _relative(one: RelatedRun) -> tuple[str, ...]:
    it, p = one.overview, one.overview.progress
    return (
        f"{it.run.name} (this run)" if one.is_this else it.run.name,
        f"step {it.fork.step:,} of {it.fork.run}" if it.fork else "",
        it.word,
        f"{p.step:,} of {p.steps:,}" if p.steps else f"{p.step:,}",
        f"{p.loss:.4g}" if p.loss is not None else "",
    )
