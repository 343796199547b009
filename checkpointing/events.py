"""Defines events, and those that checkpointing reports to the caller through
`on_event(kind, **fields)`.

Each kind of event is a frozen dataclass below `Event`. Users of the package get the kind and the
fields of an event; a program that keeps events, as hpckit does, may use the classes.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import MISSING, FrozenInstanceError, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Never, Protocol, TypeVar, dataclass_transform

logger = logging.getLogger("checkpointing")


@dataclass(frozen=True)
class AtLeast:
    """A constraint on a field: its value is finite and not less than `least`."""

    least: float


Count = Annotated[int, AtLeast(0)]
"""A whole number that is not negative."""
Seconds = Annotated[float, AtLeast(0)]
"""A duration in seconds."""


def _now() -> float:
    return round(time.time(), 6)


_Class = TypeVar("_Class")


@dataclass_transform(
    frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,)
)
def event_fields(cls: type[_Class]) -> type[_Class]:
    """Makes the annotations of an event class its fields, which are arguments by name only.

    The class has the methods of `Event`, for all classes the same ones: `dataclass` would compile
    three for each of a hundred classes, in each process that imports them."""
    return dataclass(init=False, kw_only=True, eq=False, repr=False)(cls)


@event_fields
class Event:
    """Something that happened at a moment. Each kind of it is a subclass.

    A field without a default is always written, and an event without it is damaged; a field whose
    default is None is only written if it has a value. Values are plain JSON. An event that was read
    from a file also keeps fields that its class does not know, and its values are only of the
    declared types if it has been validated.
    """

    time: float = field(default_factory=_now)
    """Seconds since the epoch at which it happened."""
    kind: str = field(default="", init=False)
    """The name of the kind, as it is written."""

    def __init__(self, **values: Any) -> None:
        for one in dataclasses.fields(self):
            if not one.init:
                continue
            if one.name in values:
                self.__dict__[one.name] = values.pop(one.name)
            elif one.default is not MISSING:
                self.__dict__[one.name] = one.default
            elif one.default_factory is not MISSING:
                self.__dict__[one.name] = one.default_factory()
            else:
                raise TypeError(f"{type(self).__name__}: the field {one.name!r} is missing")
        if values:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(map(repr, values))}")

    if not TYPE_CHECKING:  # type checkers would allow names that an event does not have

        def __setattr__(self, name: str, value: object) -> Never:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> Never:
            raise FrozenInstanceError(f"cannot delete field {name!r}")

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that are written beside time and kind."""
        left_out = _NONE_IS_LEFT_OUT.get(type(self), frozenset())
        return {
            name: value
            for name, value in self.__dict__.items()
            if name not in _HEAD and (value is not None or name not in left_out)
        }

    @property
    def get(self) -> Callable[..., Any]:
        """`event.get(name, default=None)` returns a field by its name, as `dict.get` does; for
        fields that the class does not know, such as metrics of the user's own."""
        return self.__dict__.get

    def __getitem__(self, name: str) -> Any:
        """Returns a field by its name. Raises KeyError if the event has no such field."""
        if name in self.__dict__ or name not in _NONE_IS_LEFT_OUT.get(type(self), ()):
            return self.__dict__[name]
        return None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event) or type(self) is not type(other):
            return NotImplemented
        return self.time == other.time and self.kind == other.kind and self.fields == other.fields

    def __hash__(self) -> int:
        return hash((self.time, self.kind))

    def __repr__(self) -> str:
        values = {"time": self.time, "kind": self.kind, **self.fields}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in values.items())})"


_HEAD = frozenset(("time", "kind"))
_NONE_IS_LEFT_OUT: dict[type[Event], frozenset[str]] = {}
"""The fields of each class that are not written if they are None."""
EVENT_KINDS: dict[str, type[Event]] = {}
"""The class of each known kind of event."""
ADDED_FIELDS: dict[type[Event], frozenset[str]] = {}
"""The fields of each class that files of earlier releases lack. They are None then."""

_Kind = TypeVar("_Kind", bound=Event)


@dataclass_transform(
    frozen_default=True, kw_only_default=True, eq_default=False, field_specifiers=(field,)
)
def event_kind(kind: str, *, added: Collection[str] = ()) -> Callable[[type[_Kind]], type[_Kind]]:
    """Makes a class the frozen dataclass of a kind of event, with arguments by name only.

    Args:
        kind: its name as it is written.
        added: the fields without a default that files of earlier releases lack.
    """

    def declare(cls: type[_Kind]) -> type[_Kind]:
        made = event_fields(cls)
        for name, value in {"kind": kind, **dict.fromkeys(added)}.items():
            type.__setattr__(made, name, value)
        optional = (one.name for one in dataclasses.fields(made) if one.default is None)
        _NONE_IS_LEFT_OUT[made] = frozenset(optional)
        ADDED_FIELDS[made] = frozenset(added)
        EVENT_KINDS[kind] = made
        return made

    return declare


def event_with(cls: type[_Kind], time: float, fields: dict[str, Any]) -> _Kind:
    """Returns an event with these fields, be they complete, known to the class, or not: as they
    are read, or with metrics of the user's own. The event takes `fields` over.

    An event of a class without a kind of its own takes its kind from `fields`."""
    fields["time"] = time
    event = object.__new__(cls)
    object.__setattr__(event, "__dict__", fields)
    return event


class OnEvent(Protocol):
    """A callback for events, called on rank 0 only, from the trainer's thread or the writer's."""

    def __call__(self, kind: str, **fields: Any) -> None: ...


class Events:
    """Passes events on if `on_event` is set and this is rank 0."""

    def __init__(self, on_event: OnEvent | None, rank: int) -> None:
        self.rank = rank
        self._on_event = on_event if rank == 0 else None

    def emit(self, event: Event) -> None:
        """Passes the kind and the fields of `event` on, without its time."""
        if self._on_event is None:
            return
        try:
            self._on_event(event.kind, **event.fields)
        except Exception:
            # an exception in the callback must not lose a checkpoint
            logger.exception("on_event failed for %r", event)


@event_kind("checkpoint_started")
class CheckpointStarted(Event):
    """Rank 0 of the trainer emits this when `save` begins to save a step, before a slot is
    claimed."""

    step: Count
    """The number of finished steps in the checkpoint."""


@event_kind("checkpoint_staged", added=("waited_s", "seconds"))
class CheckpointStaged(Event):
    """Rank 0 of the trainer emits this when its part of the state is copied into shared memory, so
    that training may change the state; the checkpoint is not durable yet."""

    step: Count
    """The number of finished steps in the checkpoint."""
    waited_s: Seconds | None
    """The seconds that training has waited for the save."""
    seconds: Seconds | None
    """The seconds from the call of `save` to the end of the copy."""
    bytes: Count
    """The bytes of the state of rank 0."""


@event_kind("checkpoint_committed", added=("id", "store"))
class CheckpointCommitted(Event):
    """Rank 0 of the trainer emits this when a checkpoint has become durable and can be restored."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str | None
    """The name of the checkpoint in its store."""
    store: str | None
    """The URL of the store."""
    bytes: Count | None = None
    """The bytes of the saved state of all ranks; unknown after a restart of the service."""
    new_bytes: Count | None = None
    """The bytes that were written to the store for the checkpoint."""
    seconds: Seconds | None = None
    """The seconds from the call of `save` to the commit."""


@event_kind("checkpoint_failed")
class CheckpointFailed(Event):
    """Rank 0 of the trainer emits this when a save has failed; the service may still try again."""

    step: Count
    """The number of finished steps in the checkpoint."""
    error: str
    """The error, for people."""


@event_kind("checkpoint_skipped", added=("id",))
class CheckpointSkipped(Event):
    """Rank 0 of the trainer emits this when a restore does not use a checkpoint, because it is
    damaged, its replicas differ, or the caller's check rejects it."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str | None
    """The name of the checkpoint in its store."""
    reason: str
    """Why it is not used, for people."""
    is_rejected: bool = False
    """Whether the caller's check rejects it, although it is whole."""


@event_kind("checkpoint_restored", added=("tier",))
class CheckpointRestored(Event):
    """Rank 0 of the trainer emits this when all ranks have restored a checkpoint."""

    step: Count
    """The number of finished steps in the checkpoint."""
    seconds: Seconds
    """The seconds that the restore took."""
    bytes: Count
    """The bytes that rank 0 has restored."""
    tier: str | None
    """Where the state was read from: memory, another node, the spool or the store."""


@event_kind("manifest_read")
class ManifestRead(Event):
    """Rank 0 of the trainer emits this when all ranks know the manifest of the checkpoint that a
    restore reads from the store. One rank of each node reads it for the others."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str
    """The name of the checkpoint in its store."""
    readers: Count
    """The number of ranks that have read something of the manifest from the store."""
    ranks: Count
    """The number of all ranks."""
    requests: Count
    """The ranges of the manifest that all ranks together have read."""
    bytes: Count
    """The bytes of these ranges."""
    reason: str | None = None
    """Why a rank has read it although another rank of its node had, for people."""


@event_kind("checkpoint_pruned", added=("id",))
class CheckpointPruned(Event):
    """Rank 0 of the trainer emits this for each checkpoint that the retention policies have
    removed."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str | None
    """The name that the checkpoint had in its store."""


@event_kind("checkpoint_adopted")
class CheckpointAdopted(Event):
    """Rank 0 of the trainer emits this when a restore has committed a save that a former process
    had written in full but not committed."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str
    """The name of the checkpoint in its store."""


@event_kind("save_skipped")
class SaveSkipped(Event):
    """Rank 0 of the trainer emits this when a step is not saved because there is no slot for its
    snapshot."""

    step: Count
    """The number of finished steps that were to be saved."""
    reason: str
    """Why there is no slot, for people."""


@event_kind("save_dropped")
class SaveDropped(Event):
    """Rank 0 of the trainer emits this when a snapshot is dropped for a newer one, because the
    store is slower than the saves."""

    step: Count
    """The number of finished steps in the snapshot."""


@event_kind("save_abandoned")
class SaveAbandoned(Event):
    """Rank 0 of the trainer emits this when a restore has made sure that an incomplete save of a
    former process can never be committed."""

    step: Count
    """The number of finished steps that were to be saved."""
    id: str
    """The name that the checkpoint was to have in its store."""


@event_kind("replicas_differ")
class ReplicasDiffer(Event):
    """Rank 0 of the trainer emits this when ranks held different replicas of the same tensors or
    values at a save."""

    step: Count
    """The number of finished steps in the checkpoint."""
    summary: str
    """The first differences, for people."""
    id: str | None = None
    """The name of the checkpoint in its store."""
    count: Count | None = None
    """The number of tensors and values that differ."""
    tensors: list[str] | None = None
    """The names of the first tensors and values that differ."""
    odd_ranks: list[Count] | None = None
    """The first ranks whose replicas differ from those of most ranks."""
    is_suspect: bool | None = None
    """Whether the checkpoint is marked, so that a restore prefers another one."""


@event_kind("replication_off")
class ReplicationOff(Event):
    """Rank 0 of the trainer emits this when snapshots are not replicated to other nodes although
    the caller asked for it."""

    reason: str
    """Why they are not, for people."""


@event_kind("service_lost")
class ServiceLost(Event):
    """Rank 0 of the trainer emits this when the checkpoint service of its node has ended
    unexpectedly; it is started again."""


@event_kind("checkpoint_tier")
class TierChosen(Event):
    """Rank 0 of the trainer emits this when the service has decided, with a deadline ahead, where a
    snapshot is made durable in time."""

    step: Count
    """The number of finished steps in the snapshot."""
    tier: str
    """The place: the store, or the spool on the node's disk."""
    codec: str
    """How chunks are compressed."""
    left_s: float
    """The seconds that are left until the deadline."""
    needs_s: float
    """The seconds that the choice takes by the speeds that were measured."""


@event_kind("checkpoint_spooled")
class CheckpointSpooled(Event):
    """Rank 0 of the trainer emits this when its node has a copy of a snapshot in the spool."""

    step: Count
    """The number of finished steps in the snapshot."""
    bytes: Count
    """The bytes that were copied."""
    seconds: Seconds
    """The seconds that the copy took."""


@event_kind("spool_failed")
class SpoolFailed(Event):
    """Rank 0 of the trainer emits this when a snapshot cannot be copied into the spool."""

    step: Count
    """The number of finished steps in the snapshot."""
    error: str
    """The errors, for people."""
