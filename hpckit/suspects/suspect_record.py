"""The records of the suspect list, and what follows from them. Pure.

A record is a small JSON document that any member of a group may have written. Nothing in it is
trusted beyond its form: what is not exactly of this form is no record, texts become short lines,
and no record counts for longer than `LONGEST_S`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hpckit.slurm.node_exclusion import ExcludableNode, drain_line

RecordKind = Literal["report", "recheck", "clear"]
MOST_BYTES = 8192
"""Size of a record from which on it is ignored."""
LONGEST_S = 14 * 24 * 3600.0
"""Seconds for which a record counts at most, whatever it says."""
AHEAD_S = 300.0
"""Seconds by which the clock of a writer may be ahead."""
SHARE = 4
"""Runs do without one in so many nodes of a partition at most because of the list: if more are
suspects, the cause is hardly the nodes."""
_KINDS = ("report", "recheck", "clear")
_VERSION = 1
_TEXT = 400  # characters
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True)
class SuspectRecord:
    """What one run, or one person, has recorded about a node."""

    node: str
    """Slurm's name of the node."""
    kind: RecordKind
    """report: a run has excluded the node; recheck: a person had it checked again; clear: a person
    has cleared it of what was recorded before."""
    time: float
    """When the problem was last seen, or the person acted, in seconds since the epoch."""
    expires: float
    """When the record stops to count, in seconds since the epoch."""
    reason: str
    """The problem, or for a clear why it was cleared; a line."""
    is_unhealthy: bool = False
    """Whether the node failed a health check, and was not merely lost."""
    run: str = ""
    """The run directory."""
    job: str = ""
    """Slurm's number of the job."""
    event: str = ""
    """The kind of event in the run's events.jsonl that is the evidence."""
    count: int = 1
    """The number of such events."""
    user: str = ""
    """The name of the user who wrote the record."""


@dataclass(frozen=True)
class SuspectNode:
    """A node on the suspect list."""

    node: str
    reports: tuple[SuspectRecord, ...]
    """What counts against it, newest first; never empty."""
    recheck: SuspectRecord | None
    """The newest check since, or None."""
    admin: str = field(init=False)
    """The command by which an administrator drains the node."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "admin", drain_line(self.node, self.reason))

    @property
    def reason(self) -> str:
        return self.reports[0].reason

    @property
    def time(self) -> float:
        return self.reports[0].time

    @property
    def expires(self) -> float:
        return max(min(one.expires, one.time + LONGEST_S) for one in self.reports)

    @property
    def is_unhealthy(self) -> bool:
        return any(one.is_unhealthy for one in self.reports)

    @property
    def verdict(self) -> str:
        """The result of the check since: healthy, unhealthy, or unchecked."""
        if self.recheck is None:
            return "unchecked"
        return "unhealthy" if self.recheck.is_unhealthy else "healthy"

    @property
    def excludable(self) -> ExcludableNode:
        return ExcludableNode(self.node, self.reason, self.time, self.is_unhealthy)


@dataclass(frozen=True)
class SuspectView:
    """What the suspect list says at one time."""

    suspects: tuple[SuspectNode, ...] = ()
    """By name."""
    cleared: dict[str, float] = field(default_factory=dict)
    """When nodes were cleared last, in seconds since the epoch."""
    problems: tuple[str, ...] = ()
    """What could not be read, a line each."""

    def uncleared(self, bad: Iterable[ExcludableNode]) -> list[ExcludableNode]:
        """Returns those of a run's own excludable nodes that nobody has cleared since."""
        return [one for one in bad if one.time > self.cleared.get(one.host, -math.inf)]


def is_node_name(text: str) -> bool:
    """Returns whether a text may be the name of a node."""
    return _NODE.fullmatch(text) is not None


def encode(record: SuspectRecord) -> str:
    """Returns the document of a record, whose texts are shortened."""
    values = {name: _line(v) if isinstance(v, str) else v for name, v in asdict(record).items()}
    return json.dumps({"version": _VERSION, **values}, indent=1) + "\n"


def decode(text: str) -> SuspectRecord | None:
    """Returns the record in a document, or None if it is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.pop("version", None) != _VERSION:
        return None
    try:
        record = SuspectRecord(**values)
    except TypeError:  # other fields
        return None
    return record if _is_valid(record) else None


def _is_valid(record: SuspectRecord) -> bool:
    texts = (record.reason, record.run, record.job, record.event, record.user)
    return (
        isinstance(record.node, str)
        and is_node_name(record.node)
        and record.kind in _KINDS
        and all(_is_time(value) for value in (record.time, record.expires))
        and isinstance(record.is_unhealthy, bool)
        and type(record.count) is int
        and 0 < record.count < 1_000_000
        and all(isinstance(text, str) and text == _line(text) for text in texts)
    )


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _line(text: str) -> str:
    return " ".join(_CONTROL.sub(" ", text).split())[:_TEXT].rstrip()


def view_of(
    records: Iterable[SuspectRecord], now: float, problems: Sequence[str] = ()
) -> SuspectView:
    """Returns what these records say.

    Args:
        now: seconds since the epoch.
    """
    counted = [
        one
        for one in records
        if one.time <= now + AHEAD_S and now < min(one.expires, one.time + LONGEST_S)
    ]
    cleared: dict[str, float] = {}
    for one in counted:
        if one.kind == "clear":
            cleared[one.node] = max(one.time, cleared.get(one.node, 0.0))
    found: dict[str, list[SuspectRecord]] = {}
    for one in sorted(counted, key=lambda one: -one.time):
        if one.kind != "clear" and one.time > cleared.get(one.node, -math.inf):
            found.setdefault(one.node, []).append(one)
    suspects = []
    for node in sorted(found):
        against = [r for r in found[node] if r.kind == "report" or r.is_unhealthy]
        rechecks = [one for one in found[node] if one.kind == "recheck"]
        newest = rechecks[0] if rechecks else None
        if against:
            suspects.append(SuspectNode(node, tuple(against), newest))
    return SuspectView(tuple(suspects), cleared, tuple(problems))


def within_share(
    suspects: Iterable[SuspectNode], nodes: int
) -> tuple[list[SuspectNode], list[SuspectNode]]:
    """Returns the suspects to do without in a partition of `nodes` nodes, and the others, which are
    too many: first those of most runs, then unhealthy ones, then the newest."""
    ranked = sorted(
        suspects,
        key=lambda one: (-len({r.run for r in one.reports}), not one.is_unhealthy, -one.time),
    )
    most = max(1, nodes // SHARE)
    return ranked[:most], ranked[most:]


def reportable(bad: Sequence[ExcludableNode], hosts: Sequence[str]) -> tuple[ExcludableNode, ...]:
    """Returns the nodes that a run tells others of. If all of the several nodes of its job are bad,
    these are not among them: the cause is one that they share, such as a file system.

    Args:
        hosts: the nodes of the run's job.
    """
    names = {one.host for one in bad}
    is_shared = len(hosts) > 1 and names.issuperset(hosts)
    return tuple(one for one in bad if not (is_shared and one.host in hosts))
