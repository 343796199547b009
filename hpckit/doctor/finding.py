"""The result of a check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    NOTE = "note"
    """Nothing is wrong; a feature is missing, or something costs time."""
    WARN = "warn"
    """Runs will work until a failure happens."""
    FAIL = "fail"
    """A run of this config will not work."""


@dataclass(frozen=True)
class Finding:
    """A finding about one subject, as one line, with advice on what to change unless it is OK."""

    level: Level
    subject: str
    what: str
    do: str = ""


def worst(findings: Iterable[Finding]) -> Level:
    """Return the highest level of the findings; OK if there are none."""
    order = list(Level)
    return max((one.level for one in findings), key=order.index, default=Level.OK)
