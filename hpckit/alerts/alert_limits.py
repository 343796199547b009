"""Limits the number of alerts to a target. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hpckit.alerts.alert_occasions import AlertOccasion

HOUR_S = 3600.0
UNLIMITED = ("verdict", "done")
"""Kinds that the number of alerts per hour does not limit: a run has few of them."""


@dataclass(frozen=True)
class AlertLimits:
    """The limits of one target."""

    repeat_s: float
    """Seconds until the same alert may be sent again."""
    max_per_hour: int


@dataclass(frozen=True)
class SentAlerts:
    """What was sent to one target, as far as it matters for what may be sent next."""

    sent: tuple[tuple[float, str], ...] = ()
    """Time and key of each recent alert, oldest first."""
    withheld: int = 0
    """Number of alerts that were withheld since the last one that was sent."""

    def may_send(self, occasion: AlertOccasion, now: float, limits: AlertLimits) -> bool:
        """Returns whether an alert about `occasion` may be sent at the time `now`."""
        # a clock that was set back must not silence a target
        ages = [(now - time, key) for time, key in self.sent if time <= now]
        if any(key == occasion.key and age < limits.repeat_s for age, key in ages):
            return False
        recent = sum(age < HOUR_S for age, _ in ages)
        return occasion.kind in UNLIMITED or recent < limits.max_per_hour

    def after(self, occasion: AlertOccasion, now: float, limits: AlertLimits) -> SentAlerts:
        """Returns the state after an alert about `occasion` was sent."""
        kept_s = max(HOUR_S, limits.repeat_s)
        kept = tuple((time, key) for time, key in self.sent if 0 <= now - time < kept_s)
        return SentAlerts((*kept, (now, occasion.key)), 0)

    def after_withheld(self) -> SentAlerts:
        """Returns the state after an alert was withheld."""
        return replace(self, withheld=self.withheld + 1)

    def record(self) -> dict[str, Any]:
        return {"sent": [list(one) for one in self.sent], "withheld": self.withheld}


def sent_of_record(record: Any) -> SentAlerts:
    """Returns the state of a `SentAlerts.record`; what is damaged in it is left out."""
    if not isinstance(record, dict):
        return SentAlerts()
    withheld, sent = record.get("withheld"), record.get("sent")
    return SentAlerts(
        tuple(_pairs(sent if isinstance(sent, list) else ())),
        withheld if isinstance(withheld, int) and withheld >= 0 else 0,
    )


def _pairs(values: Iterable[Any]) -> Iterable[tuple[float, str]]:
    for value in values:
        match value:
            case [int() | float() as time, str() as key]:
                yield float(time), key
