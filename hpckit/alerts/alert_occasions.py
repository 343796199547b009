"""Occasions for alerts: which events of a run a person wants to know of, as a pure function."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpckit.agent.verdict_record import LEAVES, VerdictKind
from hpckit.config.spec import AlertKind
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    Event,
    GenerationEnded,
    HangDetected,
    NodeUnhealthy,
    RunEnded,
    RunFailed,
    RunStarted,
    SpikeFound,
    SuccessorBlocked,
    UpdateSkipped,
    WrongComputation,
)
from hpckit.report.progress import describe_skipped, describe_spike
from hpckit.report.run_state import RunState
from hpckit.text.quantities import count

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class AlertOccasion:
    """An occasion for an alert."""

    kind: AlertKind
    key: str
    """Equal for occasions of which one message is enough for a while."""
    headline: str
    """A few words."""
    what: str | None
    """What has happened; None: the verdict says it."""
    time: float
    """Seconds since the epoch."""
    state: RunState
    """The state of the run after it."""


class OccasionFinder:
    """Finds the occasions in the events of a run, which have to be given in the order of the
    file."""

    def __init__(self) -> None:
        self._is_open = False  # a supervisor has begun and has not recorded its end
        self._ended: GenerationEnded | None = None  # since that begin

    def find(self, event: Event) -> AlertOccasion | None:
        """Returns the occasion that `event` is, or None."""
        match event:
            case RunStarted():
                was_open, self._is_open, self._ended = self._is_open, True, None
                return _of_silent_end(event) if was_open else None
            case RunEnded():
                self._is_open = False
                return _of_end(event, self._ended)
            case RunFailed():
                self._is_open = False
                what = f"the supervisor failed: {event.error}"
                return _occasion(event, "verdict", "failed", what, RunState.FAILED, is_once=True)
            case GenerationEnded():
                self._ended = event
                return None if event.final or event.verdict in LEAVES else _of_retry(event)
        return _of_trouble(event)


def _of_silent_end(event: RunStarted) -> AlertOccasion:
    what = (
        "the supervisor before this one ended without a verdict: it was killed, or its machine "
        "failed; another one continues the run"
    )
    headline = "ended without a verdict, and continues"
    return _occasion(event, "verdict", headline, what, RunState.STARTING, is_once=True)


def _of_end(event: RunEnded, ended: GenerationEnded | None) -> AlertOccasion:
    if event.verdict == VerdictKind.DONE:
        return _occasion(event, "done", "done", None, RunState.ENDED, is_once=True)
    is_same = ended is not None and ended.verdict == event.verdict
    if event.verdict in LEAVES or (is_same and ended is not None and not ended.final):
        what = f"{event.verdict}: {ended.reason if ended is not None else 'its job ended'}"
        return _occasion(event, "interrupted", "interrupted", what, RunState.WAITING)
    headline = f"ended: {event.verdict}"
    return _occasion(event, "verdict", headline, None, RunState.ENDED, is_once=True)


def _of_retry(event: GenerationEnded) -> AlertOccasion:
    what = f"{event.verdict}: {event.reason}"
    return _occasion(event, "interrupted", "interrupted, and continues", what, RunState.STARTING)


def _of_trouble(event: Event) -> AlertOccasion | None:
    match event:
        case HangDetected():
            ranks = ", ".join(map(str, event.local_ranks))
            what = (
                f"{count(len(event.local_ranks), 'rank')} of node {event.node} (local {ranks}) "
                f"finished no step after step {event.step:,} and will be restarted; "
                f"{f'{event.explanation}; ' if event.explanation else ''}their stacks: "
                f"{', '.join(event.stacks) or 'none'}"
            )
            return _occasion(event, "no_progress", "no progress", what, RunState.RUNNING)
        case Degraded() if event.subject == DegradedSubject.CHECKPOINT_PROGRESS:
            return _occasion(event, "no_progress", "no progress", event.what, RunState.RUNNING)
        case Degraded():
            return _occasion(event, "degraded", "degraded", event.what, RunState.RUNNING)
        case SuccessorBlocked():
            what = f"job {event.job}, which is to continue the run, cannot start: {event.reason}"
            words = f"{what}; {event.advice}"
            return _occasion(event, "degraded", "degraded", words, RunState.RUNNING)
        case SpikeFound():
            return _occasion(event, "degraded", "a spike", describe_spike(event), RunState.RUNNING)
        case UpdateSkipped():
            headline, words = "an update was left out", describe_skipped(event)
            return _occasion(event, "degraded", headline, words, RunState.RUNNING)
        case WrongComputation():
            headline = "a rank computed wrongly"
            return _occasion(event, "degraded", headline, event.what, RunState.RUNNING)
        case NodeUnhealthy():
            what = (
                f"node {event.host or event.node} is left out: {'; '.join(event.problems)}"
                f"{f'; an administrator may type: {event.admin}' if event.admin else ''}"
            )
            headline = "a node is left out"
            return _occasion(event, "degraded", headline, what, RunState.RUNNING)
    return None


def _occasion(
    event: Event,
    kind: AlertKind,
    headline: str,
    what: str | None,
    state: RunState,
    *,
    is_once: bool = False,
) -> AlertOccasion:
    """Args:
    is_once: whether each such event is reported, whatever was before it.
    """
    key = str(event.time) if is_once else _NUMBER.sub("#", what or "")
    return AlertOccasion(kind, f"{kind} {headline} {key}", headline, what, event.time, state)
