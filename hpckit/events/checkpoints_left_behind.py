"""The checkpoints that a run has left behind, as it went back to an earlier one: they are never
used again, and need not be loaded to find that out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from checkpointing.events import CheckpointCommitted, CheckpointSkipped
from hpckit.events.schema import Event, SpikeFound, TrainingStarted, WrongComputation


class _Identified(Protocol):
    """A checkpoint, or what identifies its save."""

    @property
    def id(self) -> str: ...

    @property
    def step(self) -> int: ...


_Checkpoint = TypeVar("_Checkpoint", bound=_Identified)


def choices(
    found: Sequence[_Checkpoint], step: int | None, left_behind: Collection[str]
) -> list[_Checkpoint]:
    """Return the checkpoints of a run that one may begin with, in their order.

    Args:
        step: the step that is asked for, of which those that are left behind count if there are no
            others; None: any step, and only those that the run would continue from.
        left_behind: as `checkpoints_left_behind`.
    """
    fitting = [one for one in found if step in (None, one.step)]
    used = [one for one in fitting if one.id not in left_behind]
    return used if step is None else used or fitting


def checkpoints_left_behind(events: Iterable[Event]) -> dict[str, str]:
    """Return the ids of the checkpoints that are not used any more, and why.

    They were committed before the run went back to an earlier step after a spike or a wrong
    computation; or they were loaded and rejected, as a checkpoint may exist whose commit was not
    recorded.

    Args:
        events: of the run, in the order of time.
    """
    found: dict[str, str] = {}
    committed: dict[str, int] = {}
    rejected: dict[str, tuple[int, str]] = {}
    cause: str | None = None
    for event in events:
        if isinstance(event, CheckpointCommitted) and event.id is not None:
            committed[event.id] = event.step
        elif isinstance(event, CheckpointSkipped) and event.id is not None and event.is_rejected:
            rejected[event.id] = (event.step, event.reason)
        elif isinstance(event, SpikeFound) and event.is_left_out:
            cause = f"the spike at step {event.step}"
        elif isinstance(event, WrongComputation):
            cause = f"ranks computed differently at step {event.step}"
        elif isinstance(event, TrainingStarted):
            found |= {id_: why for id_, (step, why) in rejected.items() if step > event.step}
            if cause is not None:
                why = f"the run went back to step {event.step}, before it, after {cause}"
                later = (id_ for id_, step in committed.items() if step > event.step)
                found |= {id_: why for id_ in later if id_ not in found}
            cause, rejected = None, {}
    return found
