"""What a check says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much it matters."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong; something can be had that is not, or costs time."""
    WARN = "warn"
    """Runs will work until something happens."""
    FAIL = "fail"
    """A run of this config will not work."""


@dataclass(frozen=True)
class Finding:
    """One subject, in a line; and what to change, unless it is well."""

    level: Level
    subject: str
    what: str
    do: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """Of them all; OK if there are none."""
    order = list(Level)
    return max((one.level for one in findings), key=order.index, default=Level.OK)
