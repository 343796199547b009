"""Validation of events before they are used, as a damaged line may still be JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpckit.events.clock_order import in_order
from hpckit.events.end_reasons import KINDS
from hpckit.events.event_log import Event, EventTail
from hpckit.events.step_phases import NAMES
from hpckit.rundir.directory import RunDir

Check = Callable[[Any], bool]
_HIGHEST = 2**63


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _HIGHEST


def _number(value: Any) -> bool:
    """NaN and infinity are numbers here, as a loss may be one."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _seconds(value: Any) -> bool:
    return _number(value) and math.isfinite(value) and value >= 0


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _verdict(value: Any) -> bool:
    return isinstance(value, str) and value in KINDS


def _or_null(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _any(_: Any) -> bool:
    return True


NEEDED: Mapping[str, Mapping[str, Check]] = {
    "run_started": {"steps": _or_null(_whole)},
    "run_ended": {"verdict": _text},
    "run_failed": {"error": _text},
    "run_refused": {"error": _text},
    "generation_started": {"generation": _whole, "nodes": _whole},
    "generation_ended": {
        **{"generation": _whole, "step": _whole, "verdict": _verdict, "reason": _text},
    },
    "training_started": {"generation": _whole, "step": _whole, "world_size": _whole},
    "worker_lost": {"step": _whole},
    "step": {"generation": _whole, "step": _whole, "step_s": _seconds},
    "validated": {"step": _whole},
    "checkpoint_started": {"step": _whole},
    "checkpoint_committed": {"step": _whole, "id": _text, "store": _text},
    "replicas_differ": {"step": _whole, "summary": _text},
    "successor_queued": {"job": _any},
    "straggler": {
        **{"rank": _whole, "host": _text, "step": _whole, "z": _number, "excess": _number},
    },
    "straggler_over": {"rank": _whole},
    "node_unhealthy": {"host": _or_null(_text), "problems": _texts},
    "node_lost": {"host": _or_null(_text)},
    "agent_killed": {"host": _or_null(_text)},
    "degraded": {"what": _text},
    "fork_unusable": {"why": _text},
    "data_bound": {"bound": _text, "diagnosis": _text},
}
_OPTIONAL_FIELDS: Mapping[str, Check] = {
    **{"attempt": _whole, "generation": _or_null(_whole), "node": _or_null(_whole)},
    **{"samples": _or_null(_whole), "position": _or_null(_whole)},
    **{"global_batch": _or_null(_whole), "restore_s": _seconds, "hosts": _or_null(_texts)},
    **{"from_step": _whole, "saved_step": _whole},
    **{"bytes": _whole, "new_bytes": _whole, "seconds": _seconds},
}
_NUMERIC_KINDS = ("step", "validated")
"""Kinds of events whose fields are all numbers."""
_NUMBERS = frozenset((int, float))

READ = frozenset(
    (
        *("step", "generation", "attempt", "loss", "step_s", "tokens_per_s", "samples_per_s"),
        *("mfu", "peak_memory_bytes", "peak_rss_bytes", "data_wait_share", "data_hits"),
        *("data_misses", "data_bypasses", "data_errors", "traced_step_s"),
        *("communication_exposed_s", *NAMES),
    )
)
"""The fields that are used of step records, of which there may be a million."""


@dataclass(frozen=True)
class ValidatedEvents:
    """The valid events of a run."""

    events: list[Event]
    """Ordered by time; step records have only the fields that are used."""
    torn: int
    """Number of lines that are no event."""
    unsound: int
    """Number of events with a missing field or one of a wrong type."""


def read_valid_events(run: RunDir) -> ValidatedEvents:
    """Returns the valid events, and the numbers of invalid ones."""
    tail, unsound = EventTail(run.events), 0
    events = []
    for event in tail.read():
        event = without_unread_fields(event)
        if is_valid(event):
            events.append(event)
        else:
            unsound += 1
    return ValidatedEvents(in_order(events), tail.torn, unsound)


def is_valid(event: Event) -> bool:
    """Whether an event has the fields that are used of its kind. Events of unused kinds are
    valid."""
    needed = NEEDED.get(event.kind)
    if needed is None:
        return True
    fields = event.fields
    if event.kind in _NUMERIC_KINDS and not _NUMBERS.issuperset(map(type, fields.values())):
        return False
    if not all(name in fields and check(fields[name]) for name, check in needed.items()):
        return False
    return all(check(fields[name]) for name, check in _OPTIONAL_FIELDS.items() if name in fields)


def without_unread_fields(event: Event) -> Event:
    """Returns a step record with only the fields that are used, without nulls; other events
    unchanged."""
    if event.kind != "step":
        return event
    found = event.fields
    fields = {name: found[name] for name in READ if found.get(name) is not None}
    return Event(event.time, "step", fields)
