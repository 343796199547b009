"""Decides which checkpoint a follower takes next, and when it looks again: pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Order = Literal["newest", "each"]

JITTER = 0.2  # of the interval: many followers do not list the store at the same moment
LONGEST_S = 60.0  # seconds between two tries while the store is out of reach


@dataclass(frozen=True)
class OfferedStep:
    """A committed checkpoint, as far as the choice depends on it."""

    step: int
    session: str
    key: str  # of its last readable manifest
    created: float  # Unix time in seconds
    is_copy: bool = False  # imported, or the first one of a fork

    @property
    def order(self) -> tuple[int, float, str]:
        return self.step, self.created, self.key


@dataclass(frozen=True)
class HeldStep:
    """The checkpoint whose weights a follower has."""

    step: int
    session: str
    created: float


def current_line(offers: Iterable[OfferedStep]) -> list[OfferedStep]:
    """Return the checkpoints of the training as it went last, in the order of their steps.

    A run that went back, because its loss spiked or a checkpoint was damaged, saves lower steps
    again under another session. What an earlier session saved from there on is superseded. This
    relies on the clocks of the nodes that save: one that is ahead supersedes the next session's
    checkpoints until these are later.
    """
    line: list[OfferedStep] = []
    lowest: dict[str, OfferedStep] = {}  # by session, of those created later
    for one in sorted(offers, key=lambda each: (-each.created, each.step)):
        if not any(_supersedes(other, one) for other in lowest.values()):
            line.append(one)
        if not one.is_copy and (one.session not in lowest or one.step < lowest[one.session].step):
            lowest[one.session] = one
    return sorted(line, key=lambda each: each.order)


def choose_step(
    offers: Iterable[OfferedStep],
    held: HeldStep | None,
    *,
    every: int = 1,
    order: Order = "newest",
    ignored: Collection[str] = (),
) -> OfferedStep | None:
    """Return the checkpoint to take next; None if there is none.

    Args:
        offers: the committed checkpoints of the run, in any order.
        held: the one that is held; None: none. Then the newest is taken, whatever `order` is.
        every: fewest steps between two that are taken.
        order: "newest" skips those in between; "each" takes the oldest that is newer than `held`.
        ignored: keys of manifests that cannot be used.
    """
    line = [one for one in current_line(offers) if one.key not in ignored]
    if held is None:
        return line[-1] if line else None
    if went_back(line, held):
        later = [one for one in line if one.created > held.created]
    else:
        later = [one for one in line if one.step >= held.step + every]
    if not later:
        return None
    return later[-1] if order == "newest" else later[0]


def went_back(line: Sequence[OfferedStep], held: HeldStep) -> bool:
    """Return whether the run was at the held step, or below it, again after it was saved."""
    mine = OfferedStep(held.step, held.session, "", held.created)
    return any(_supersedes(one, mine) for one in line)


def next_look_s(interval_s: float, failures: int, jitter: float) -> float:
    """Return the seconds to wait before the store is listed again.

    Args:
        interval_s: seconds between two listings.
        failures: how many tries have failed since the last one that did not. Each doubles the
            wait, up to a minute or the interval, whichever is longer.
        jitter: from [0, 1].
    """
    wait_s = min(interval_s * 2.0 ** min(failures, 30), max(LONGEST_S, interval_s))
    return wait_s * (1 + JITTER * (2 * jitter - 1))


def _supersedes(one: OfferedStep, other: OfferedStep) -> bool:
    is_later = one.created > other.created and one.step <= other.step
    return is_later and one.session != other.session and not one.is_copy
