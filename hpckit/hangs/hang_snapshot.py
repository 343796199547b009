"""The snapshot of a rank: what it was doing at one moment of a hang, as plain data that agents send
to the supervisor. Its size is bounded, so that the snapshots of thousands of ranks are small."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, TypeAlias

MOST_FRAMES = 40
"""Innermost frames of a stack that are kept."""
MOST_GROUPS = 64
"""Process groups of a rank that are kept."""
MOST_RECORDS = 12
"""Newest collectives of a process group that are kept, of those that torch has recorded."""
MOST_CHARACTERS = 200
"""Characters of a text that are kept."""


GroupKey: TypeAlias = "tuple[str, tuple[tuple[int, int, int], ...]]"


class ProcessState(StrEnum):
    """The state of a rank's process, as its node sees it."""

    ALIVE = "alive"
    """It runs or sleeps, and its stack is known or not."""
    STOPPED = "stopped"
    """A signal has stopped it, or a debugger."""
    UNINTERRUPTIBLE = "uninterruptible"
    """It waits in the kernel and handles no signal, mostly for a disk or a file server."""
    ENDED = "ended"
    """The process has ended."""
    UNREACHABLE = "unreachable"
    """Its node has not answered."""


@dataclass(frozen=True)
class StackFrame:
    """A Python frame."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class CollectiveCall:
    """A call of a collective of torch."""

    operation: str
    """Such as `all_reduce`."""
    group: str
    """The name of its process group in torch."""
    size: str | None = None
    """The type and shape of its tensor, such as `float32[4, 16]`; None: unknown."""
    peer: int | None = None
    """The other rank, in the numbers of the default group, if it sends or receives."""


@dataclass(frozen=True)
class RecordedCall:
    """A collective that torch has recorded when it was called."""

    sequence: int
    operation: str
    size: str | None


@dataclass(frozen=True)
class ProcessGroupState:
    """A process group of a rank."""

    name: str
    """The name in torch, which is the same on all of its ranks."""
    description: str
    """The description that the program gave it, or empty."""
    ranks: tuple[tuple[int, int, int], ...]
    """Its members, in ranges of start, stop and step: see `compressed`."""
    sequence: int | None
    """The number of collectives that this rank has entered; None: unknown."""
    records: tuple[RecordedCall, ...] = ()
    """The newest of these, oldest first, where torch records them."""

    @property
    def key(self) -> GroupKey:
        """What tells the group from all others of the generation."""
        return self.name, self.ranks


@dataclass(frozen=True)
class HangSnapshot:
    """What one rank was doing at a hang."""

    rank: int
    host: str
    state: ProcessState
    step: int = 0
    """Number of finished steps."""
    frames: tuple[StackFrame, ...] = ()
    """The stack of its main thread, innermost frame first; empty: unknown."""
    call: CollectiveCall | None = None
    """The collective that its main thread is in."""
    pending: CollectiveCall | None = None
    """The newest collective that it has started and that has not ended, as torch has recorded it.
    The rank may be elsewhere meanwhile."""
    groups: tuple[ProcessGroupState, ...] | None = None
    """Its process groups; None: unknown."""
    is_moving: bool = False
    """Whether its main thread was elsewhere at a second look."""
    is_overdue: bool = False
    """Whether it has finished no step for too long."""
    has_advanced: bool = False
    """Whether it has finished a step since the alarm, or has entered further collectives."""
    notes: tuple[str, ...] = ()
    """Facts from its node, such as that a child process is stopped."""

    @property
    def group_of_call(self) -> ProcessGroupState | None:
        """The process group of its call; None: it is in no call, or the group is unknown."""
        return self.group_of(self.call) if self.call is not None else None

    def group_of(self, call: CollectiveCall) -> ProcessGroupState | None:
        """Returns the process group of a call of this rank; None: it is unknown."""
        return next((one for one in self.groups or () if one.name == call.group), None)

    def record(self) -> dict[str, Any]:
        """Returns the snapshot as JSON values, within the limits of size."""
        groups = None if self.groups is None else [_bounded(g) for g in self.groups[:MOST_GROUPS]]
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},  # asdict is slow
            "call": None if self.call is None else asdict(self.call),
            "pending": None if self.pending is None else asdict(self.pending),
            "frames": [
                [one.file[-MOST_CHARACTERS:], one.line, one.function[:MOST_CHARACTERS]]
                for one in self.frames[:MOST_FRAMES]
            ],
            "groups": groups,
            "notes": [note[:MOST_CHARACTERS] for note in self.notes[:8]],
        }


def _bounded(group: ProcessGroupState) -> dict[str, Any]:
    records = [[r.sequence, r.operation, r.size] for r in group.records[-MOST_RECORDS:]]
    ranks = [list(one) for one in group.ranks[:MOST_GROUPS]]
    own = {"name": group.name, "description": group.description, "sequence": group.sequence}
    return {**own, "ranks": ranks, "records": records}


def load_snapshot(values: Mapping[str, Any]) -> HangSnapshot:
    """Inverts `HangSnapshot.record`.

    Raises:
        ValueError: the values do not describe a snapshot.
    """
    try:
        return HangSnapshot(
            rank=int(values["rank"]),
            host=str(values["host"]),
            state=ProcessState(values["state"]),
            step=int(values["step"]),
            frames=load_frames(values["frames"]),
            call=load_call(values["call"]),
            pending=load_call(values["pending"]),
            groups=load_groups(values["groups"]),
            is_moving=bool(values["is_moving"]),
            is_overdue=bool(values["is_overdue"]),
            has_advanced=bool(values["has_advanced"]),
            notes=tuple(map(str, values["notes"])),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not the snapshot of a rank: {error!r}") from None


def load_frames(values: Iterable[Sequence[Any]]) -> tuple[StackFrame, ...]:
    """Returns frames from JSON values; raises ValueError or TypeError if they are none."""
    return tuple(StackFrame(str(file), int(line), str(name)) for file, line, name in values)


def load_call(values: Mapping[str, Any] | None) -> CollectiveCall | None:
    """Returns a call from JSON values; raises KeyError or TypeError if they describe none."""
    if values is None:
        return None
    size, peer = values.get("size"), values.get("peer")
    return CollectiveCall(
        str(values["operation"]),
        str(values["group"]),
        None if size is None else str(size),
        None if peer is None else int(peer),
    )


def load_groups(
    values: Iterable[Mapping[str, Any]] | None,
) -> tuple[ProcessGroupState, ...] | None:
    """Returns process groups from JSON values; raises KeyError, ValueError or TypeError if they
    describe none."""
    if values is None:
        return None
    return tuple(
        ProcessGroupState(
            name=str(one["name"]),
            description=str(one["description"]),
            ranks=tuple((int(start), int(stop), int(step)) for start, stop, step in one["ranks"]),
            sequence=None if one["sequence"] is None else int(one["sequence"]),
            records=tuple(
                RecordedCall(int(number), str(operation), None if size is None else str(size))
                for number, operation, size in one["records"]
            ),
        )
        for one in values
    )


def compressed(ranks: Iterable[int]) -> list[tuple[int, int, int]]:
    """Returns ranks, in ascending order, as ranges (start, stop, step), as `range` has them."""
    found: list[tuple[int, int, int]] = []
    rest = sorted(ranks)
    while rest:
        step = rest[1] - rest[0] if len(rest) > 1 else 1
        length = 1
        while length < len(rest) and rest[length] == rest[0] + length * step:
            length += 1
        found.append((rest[0], rest[0] + length * step, step))
        rest = rest[length:]
    return found


def expanded(ranges: Iterable[tuple[int, int, int]]) -> set[int]:
    """Inverts `compressed`. A range without a positive step, or of more than a million ranks, is
    left out."""
    sound = (range(*one) for one in ranges if one[2] > 0 and one[1] - one[0] <= 1_000_000 * one[2])
    return {rank for one in sound for rank in one}
