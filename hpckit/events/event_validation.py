"""Validation of events before they are used, as a damaged line may still be JSON. The types and
constraints of the fields in `hpckit.events.schema` define which events are valid."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from checkpointing.events import ADDED_FIELDS, AtLeast, event_with
from hpckit.events.clock_order import in_order
from hpckit.events.event_log import EventTail
from hpckit.events.schema import Event, OneOf, StepLogged, UnknownEvent, Validated
from hpckit.rundir.directory import RunDir

Check = Callable[[Any], bool]
_HIGHEST = 2**63
"""The exclusive upper bound of counts and durations."""
_NUMERIC_KINDS = (StepLogged, Validated)
"""Kinds of events whose fields are all numbers."""
_NUMBERS = frozenset((int, float))

READ = frozenset(one.name for one in fields(StepLogged)) - {"kind", "submission", "node", "rank"}
"""The fields of step records that are used. A run may have a million of these records."""


@dataclass(frozen=True)
class ValidatedEvents:
    """The valid events of a run."""

    events: list[Event]
    """Ordered by time; step records have only the fields that are used."""
    torn: int
    """Number of lines that do not hold an event."""
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
    """Returns whether an event has the fields of its kind, with values of their types. Events of
    unknown kinds are valid, and so are fields that the kind does not have."""
    cls: Any = type(event)
    if cls is UnknownEvent:
        return True
    values = event.__dict__
    if cls in _NUMERIC_KINDS and not _are_numbers(values):
        return False
    needed, checks = _rules(cls)
    if not needed <= values.keys():
        return False
    for name, check in checks:  # noqa: SIM110 (`all` takes longer for a million steps)
        if name in values and not check(values[name]):
            return False
    return True


def _are_numbers(values: Mapping[str, Any]) -> bool:
    """Returns whether all values are numbers that a float can hold, if not exactly."""
    if not _NUMBERS.issuperset(map(type, values.values())):
        return False
    try:
        sum(values.values(), 0.0)
    except OverflowError:  # JSON has integers of any size
        return False
    return True


def without_unread_fields(event: Event) -> Event:
    """Returns a step record with only the fields that are used and not null; returns
    other events unchanged."""
    if type(event) is not StepLogged:
        return event
    find = event.__dict__.get
    used = {name: value for name in READ if (value := find(name)) is not None}
    return event_with(StepLogged, event.time, used)


@cache
def _rules(cls: Any) -> tuple[frozenset[str], tuple[tuple[str, Check], ...]]:
    """Returns the names of the fields that a class needs, and the checks of its fields. The value
    of a field that earlier releases did not write may be missing, but not wrong."""
    hints = get_type_hints(cls, include_extras=True)
    declared = [one for one in fields(cls) if one.name not in ("time", "kind")]
    needed = {one.name for one in declared if one.default is MISSING} - ADDED_FIELDS[cls]
    checks = [(one.name, check_of(hints[one.name])) for one in declared]
    if cls in _NUMERIC_KINDS:  # `is_valid` has checked that all of them are numbers
        checks = [(name, check) for name, check in checks if check not in _PLAIN_NUMBERS]
    return frozenset(needed), tuple(checks)


def check_of(hint: Any) -> Check:
    """Returns a function that checks whether a JSON value has a declared type."""
    if get_origin(hint) is Annotated:
        return _constrained(*get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return _or_null(*(one for one in get_args(hint) if one is not type(None)))
    if get_origin(hint) is list:
        check = check_of(*get_args(hint))
        return lambda value: isinstance(value, list) and all(map(check, value))
    if get_origin(hint) is dict:
        return _is_object
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _is_text  # a later release may have more members
    return _BY_TYPE[hint]


def _constrained(kind: type, constraint: AtLeast | OneOf) -> Check:
    if isinstance(constraint, OneOf):
        values = constraint.values
        return lambda value: isinstance(value, str) and value in values
    kinds, least = (int,) if kind is int else (int, float), constraint.least
    return lambda value: type(value) in kinds and least <= value < _HIGHEST


def _or_null(kind: Any) -> Check:
    check = check_of(kind)
    return _is_number_or_null if check is _is_number else lambda v: v is None or check(v)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Returns whether a value is a number. NaN and infinity are, as a loss may be one of them; an
    integer that no float can hold is not."""
    if isinstance(value, float):
        return True
    return _is_whole(value) and -_HIGHEST <= value < _HIGHEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number_or_null(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_truth_value(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_BY_TYPE = {int: _is_whole, float: _is_number, str: _is_text, bool: _is_truth_value}
_PLAIN_NUMBERS: Iterable[Check] = (_is_number, _is_number_or_null)
