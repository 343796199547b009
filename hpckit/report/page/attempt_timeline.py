"""The timeline of a run's attempts, and what ended each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from hpckit.report.history import History, Interruption, TrainingAttempt, names_of
from hpckit.report.page.colour_meanings import Meaning
from hpckit.report.page.page_content import PageContent
from hpckit.report.page.page_document import (
    Block,
    Lane,
    Stretch,
    TableBlock,
    TextBlock,
    TimelineBlock,
)
from hpckit.text.quantities import count, moment, span_s

KINDS = (
    (Meaning.START, "until all ranks train: queue, processes, rendezvous, restore"),
    (Meaning.TRAIN, "training"),
    (Meaning.LOST, "repeated steps; and after the last step: notice, save, exit"),
)
_LANES = 12
"""Number of attempts above which all are drawn in one lane."""
_MOST_ROWS = 200


def attempts(it: PageContent) -> Iterator[Block]:
    """Return the timeline and its table."""
    history, origin = it.history, moment(it.history.started, it.now)
    lanes = tuple(lanes_of(history))
    seconds = history.finished - history.started
    if seconds > 0:
        yield TimelineBlock("Attempts over wall time", lanes, seconds, origin, KINDS)
    rows = list(_rows(history))
    head = ("gen", "nodes", "ranks", "steps", "ended", "lost", "leave + restart + repeat", "reason")
    table = TableBlock(head, rows[-_MOST_ROWS:], words=("ended", "reason"), are_cards=True)
    yield table.filled
    if len(rows) > _MOST_ROWS:
        yield TextBlock(f"And {len(rows) - _MOST_ROWS:,} earlier ones.")
    if not history.interruptions:
        return
    yield TextBlock(
        "Lost: the time without a new step, from the last finished step (leave: notice, save, "
        "exit), over the restart (queue, processes, rendezvous, restore), to the first new step "
        "(repeat: repeated steps)."
    )


def lanes_of(history: History) -> Iterator[Lane]:
    """Return a lane for each attempt, or one lane for all if there are many."""
    names, all_stretches = names_of(history.lives), stretches(history)
    if len(names) <= _LANES:
        for name, life, own in zip(names, history.lives, all_stretches, strict=True):
            yield Lane(_name(name, life), own)
        return
    together = tuple(one for own in all_stretches for one in own)
    yield Lane(f"{count(len(names), 'attempt')}, listed in the table below", together)


def stretches(history: History) -> list[tuple[Stretch, ...]]:
    """Return the stretches of each attempt, in seconds since the run began: start, steps, end."""
    found, names = [], names_of(history.lives)
    gaps: list[Interruption | None] = [None, *history.interruptions, None]
    begun, follows = history.started, [*history.lives[1:], None]
    around = zip(names, history.lives, follows, pairwise(gaps), strict=True)
    for name, life, following, (before, after) in around:
        ended = history.finished if life.ended is None else life.ended
        if following and after:  # if no end was recorded, its last step counts
            ended = max(life.started, following.started - after.restart_s)
        repeated = min(ended, life.started + before.repeat_s) if before else life.started
        last = max(repeated, ended - (after.leave_s if after else 0.0))
        parts = (
            (Meaning.START, begun, life.started, f"{name}: start"),
            (Meaning.LOST, life.started, repeated, f"{name}: repeated steps"),
            (Meaning.TRAIN, repeated, last, f"{name}: training"),
            (Meaning.LOST, last, ended, f"{name}: leaving"),
        )
        found.append(
            tuple(
                Stretch(begin - history.started, end - history.started, kind, words)
                for kind, begin, end, words in parts
                if end > begin
            )
        )
        begun = ended
    return found


def _name(name: str, life: TrainingAttempt) -> str:
    return f"{name}: steps {life.start_step:,} → {life.end_step:,}, {life.end}"


def _rows(history: History) -> Iterator[Sequence[str]]:
    gaps: list[Interruption | None] = [*history.interruptions, None]
    for name, life, gap in zip(names_of(history.lives), history.lives, gaps, strict=True):
        yield (
            name,
            str(life.nodes),
            str(life.world_size),
            f"{life.start_step:,} → {life.end_step:,}",
            life.end,
            span_s(gap.lost_s) if gap else "",
            " + ".join(map(span_s, (gap.leave_s, gap.restart_s, gap.repeat_s))) if gap else "",
            life.reason,
        )
