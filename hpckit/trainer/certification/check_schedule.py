"""When the next check of computations is due. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hpckit.events.schema import CheckpointCertified, Event, WrongComputation

SHARE = 0.01
"""The share of the time of training that checks take at most with `checkpoint.certify=auto`."""


def least_steps(certify: Literal["auto"] | int, check_s: float, step_s: float) -> int:
    """Return the least number of steps between two checks.

    Args:
        certify: as `checkpoint.certify`.
        check_s: seconds that a check takes.
        step_s: seconds that a step takes.
    """
    if certify != "auto":
        return certify
    return max(1, math.ceil(check_s / (SHARE * step_s))) if step_s > 0 else 1


@dataclass(frozen=True)
class CheckHistory:
    """What the events of a run say about its checks."""

    passed: int = -1
    """The last step at which all ranks computed alike; -1: there was none."""
    due: int = 0
    """The least step of the next check."""
    failures: int = 0
    """Number of differences since."""


def history_of(events: Iterable[Event]) -> CheckHistory:
    """Return the history of a run by its events. After a difference, the next save is checked."""
    found = CheckHistory()
    for event in events:
        match event:
            case CheckpointCertified():
                found = CheckHistory(event.step, event.next_step, 0)
            case WrongComputation():
                found = CheckHistory(min(found.passed, event.good_step), 0, found.failures + 1)
    return found


def due_from(history: CheckHistory, step: int) -> int:
    """Return the least step of the next check for an attempt that continues from `step`, which may
    be earlier than the last check."""
    return history.due if history.passed <= step else 0
