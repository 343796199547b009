"""The page `docs/events.md`, taken from the schema of events by `docs.reference`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import cache
from itertools import pairwise
from types import ModuleType, NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from checkpointing import events as checkpoint_events
from checkpointing.events import ADDED_FIELDS, EVENT_KINDS, AtLeast, Event
from hpckit.events import schema
from hpckit.events.schema import DegradedSubject, OneOf, RunEvent

_HEAD = """# Events

`events.jsonl` in the run directory has one event per line: a JSON object with the keys `time` and
`kind`, the common fields that the writing process knows, and the fields of the kind. Supervisors,
agents and ranks append to it.

- Events of other kinds are kept when they are read: kinds of your own, which
  `run.emit_event(kind, **fields)` writes, and kinds of other releases. So are fields that a kind
  does not have, such as metrics of your own in a step record.
- A field of which the type says so may be absent. Every other field is written, as null where null
  is a value.
- A line is left out and counted if it is no JSON object with time and kind, or if a field is
  missing or has a wrong value. `hpckit report` says how many were.
- `hpckit.events.schema` and `checkpointing.events` have a class for each kind. `on_event` of a
  `Checkpointer` gets the kinds of checkpoints, with their fields and without the common ones.
"""
_DOCUMENTED: tuple[ModuleType, ...] = (checkpoint_events, schema)


def events_page(escaped: Callable[[str], str], table: Callable[..., list[str]]) -> str:
    """Returns the page.

    Args:
        escaped: makes text Markdown.
        table: makes the lines of a table of a head and rows.
    """
    head = ["field", "type", "meaning"]
    lines = [_HEAD, "## Common fields", ""]
    lines += table(head, [["`time`", "number", _meaning(Event, "time")], *_rows(RunEvent, set())])
    for title, module in (("Kinds of runs", schema), ("Kinds of checkpoints", checkpoint_events)):
        lines += [f"## {title}", ""]
        for kind, cls in sorted(EVENT_KINDS.items()):
            if cls.__module__ == module.__name__:
                rows = list(_rows(cls, _inherited(cls)))
                lines += [f"### {kind}", "", escaped(_flat(cls.__doc__)), ""]
                lines += table(head, [[row[0], row[1], escaped(row[2])] for row in rows])
    lines += ["## Subjects of degradations", ""]
    rows = [[f"`{one}`", _meaning(DegradedSubject, one.name)] for one in DegradedSubject]
    return "\n".join([*lines, *table(["subject", "meaning"], rows)])


def _inherited(cls: type[Event]) -> set[str]:
    """Returns the common fields that the class does not declare itself."""
    return {one.name for one in fields(RunEvent)} - cls.__annotations__.keys()


def _rows(cls: type[Event], left_out: set[str]) -> Iterator[list[str]]:
    hints = get_type_hints(cls, include_extras=True)
    for one in fields(cls):
        if one.name not in {"time", "kind", *left_out}:
            kind = _kind(hints[one.name], is_written=one.default is MISSING)
            is_new = one.name in ADDED_FIELDS.get(cls, ())
            older = " Files of earlier releases lack it." if is_new else ""
            yield [f"`{one.name}`", kind, _meaning(cls, one.name) + older]


def _kind(hint: Any, is_written: bool) -> str:
    """Returns a type in the words of JSON."""
    if get_origin(hint) is Annotated:
        plain, constraint = get_args(hint)
        if isinstance(constraint, OneOf):
            return "a verdict"
        assert isinstance(constraint, AtLeast)
        least = f" from {constraint.least:g}"
        return ("whole number" if plain is int else "number") + least
    if len(kinds := [one for one in get_args(hint) if one is not NoneType]) < len(get_args(hint)):
        (kind,) = kinds
        return _kind(kind, is_written) + (" or null" if is_written else "; may be absent")
    if get_origin(hint) is list:
        return f"list of: {_kind(get_args(hint)[0], is_written)}"
    if get_origin(hint) is dict:
        return "object"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return "a subject"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}[hint]


def _meaning(cls: type[Any], name: str) -> str:
    """Returns the docstring of a field, as the class or the one below it has it."""
    found = (_docstrings().get((one.__name__, name)) for one in cls.__mro__)
    return next(text for text in found if text)


@cache
def _docstrings() -> dict[tuple[str, str], str]:
    """Returns the text below each field of each class of the schema."""
    found = {}
    for module in _DOCUMENTED:
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                for name, text in _of_class(node):
                    found[node.name, name] = text
    return found


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(node.body):
        if isinstance(field, ast.AnnAssign | ast.Assign) and isinstance(after, ast.Expr):
            target = field.target if isinstance(field, ast.AnnAssign) else field.targets[0]
            yield ast.unparse(target), _flat(ast.literal_eval(after.value))


def _flat(text: str | None) -> str:
    return " ".join((text or "").split())
