"""Decides when the nodes of a job are measured (`health.deep`), by a pure function of events."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hpckit.agent.verdict_record import VerdictKind
from hpckit.config.spec import DeepHealthSpec
from hpckit.events.schema import (
    DeepHealthEnded,
    DeepHealthProblemFound,
    Event,
    GenerationEnded,
    HangDetected,
    NodeLost,
    NotFinite,
    StragglerFound,
)
from hpckit.text.quantities import count


def measuring_reasons(
    events: Sequence[Event], hosts: Collection[str], now: float, deep: DeepHealthSpec
) -> list[str]:
    """Returns why the nodes are to be measured before the next generation, as texts for people;
    empty: they are not.

    Args:
        events: of the run, in the order of time.
        hosts: names of the nodes of the job.
        now: seconds since the epoch.
    """
    reasons = []
    if deep.first and (new := sorted(set(hosts) - _measured(events, now, deep))):
        shown = ", ".join(new[:3]) + (", ..." if len(new) > 3 else "")
        reasons.append(f"{count(len(new), 'node')} not measured before ({shown})")
    if deep.after_suspicion:
        reasons += suspicions(events)
    return reasons


def suspicions(events: Sequence[Event]) -> list[str]:
    """Returns what has happened since the last measurement that a bad node may have caused, each
    once."""
    found: dict[str, None] = {}
    for event in events:
        match event:
            case DeepHealthEnded():  # also an incomplete one: it would not end the next time
                found = {}
            case HangDetected():
                found["ranks hung"] = None
            case NodeLost():
                found[f"node {event.host} was lost"] = None
            case GenerationEnded() if event.verdict == VerdictKind.INFRA:
                found["a node or its agent was lost"] = None
            case StragglerFound():
                found[f"a rank on {event.host} was a straggler"] = None
            case NotFinite():
                found["a value was not finite"] = None
    return list(found)


def _measured(events: Sequence[Event], now: float, deep: DeepHealthSpec) -> set[str]:
    """Returns the nodes whose measurements still hold, without those that were left out: if the run
    has them again, they are measured again."""
    oldest = now - 3600 * deep.valid_hours
    found: set[str] = set()
    bad: set[str] = set()  # by the measurement that has not ended yet
    for event in events:
        match event:
            case DeepHealthProblemFound() if event.is_excluded:
                bad.add(event.host)
            case DeepHealthEnded():
                if event.is_complete and event.time >= oldest:
                    found |= set(event.hosts)
                found -= bad
                bad = set()
    return found
