"""Whether successive attempts end with the same error at the same place and step, so that another
attempt would, too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from checkpointing.events import CheckpointCommitted
from hpckit.agent.exit_report import FAULTY_NODE, HANG, WorkerError, first_error
from hpckit.events.event_log import Event, EventTail
from hpckit.events.schema import CheckpointReported
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from hpckit.text.error_words import names_gpu

MOST_REPEATS = 3
"""Number of attempts in a row that may end with the same error at the same place and step."""
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_UNCLEAR = re.compile(r"DataLoader worker \(pid|\bNCCL\b|[Tt]imed? ?out|[Cc]onnection")
"""Messages of errors that the loss of another process may cause."""
_UNCLEAR_TYPES = frozenset({HANG, FAULTY_NODE, "WrongComputationError", "ProgramError"})
"""Types of errors whose traceback does not say what failed."""


def place_of(error: WorkerError | None) -> str | None:
    """Returns the type of an error, the step and the lines of code at which it was raised. None:
    these are not known, or a node, a GPU, a peer, memory, a disk or the network may be the cause,
    so that another attempt may not meet the error."""
    if error is None or error.step is None or error.is_before_step:
        return None
    if error.is_passing or error.memory is not None or error.type in _UNCLEAR_TYPES:
        return None
    if names_gpu(error.type, error.message) or _UNCLEAR.search(error.message):
        return None
    frames = " < ".join(f"{m[1]}:{m[2]}" for m in _FRAME.finditer(error.traceback))
    return f"{error.type} after step {error.step} at {frames}" if frames else None


def count_repeats(places: Sequence[str | None]) -> int:
    """Returns the number of attempts, from the first of `places` on, that ended at the same
    place.

    Args:
        places: the results of `place_of`, newest attempt first.
    """
    if not places or places[0] is None:
        return 0
    others = (number for number, place in enumerate(places) if place != places[0])
    return next(others, len(places))


def has_newer_checkpoint(events: Iterable[Event]) -> bool:
    """Returns whether a checkpoint was saved during these events, which begin at an error. The
    checkpoint from which the attempts continue is older."""
    return any(isinstance(event, CheckpointCommitted | CheckpointReported) for event in events)


class ErrorRepetition:
    """Tracks where the attempts of one node's workers end in one generation."""

    def __init__(self, logs: Path, events: Path) -> None:
        """
        Args:
            logs: the folder of the workers' errors.
            events: the events of the run.
        """
        self._logs, self._events = logs, events
        self._count = 0  # of attempts that have ended
        self._places: list[str | None] = []  # newest first
        self._offsets: list[int] = []  # of the events after each error
        self.repeats = 0
        """Number of attempts up to the last one that ended at the same place, without a new
        checkpoint between them; 0: the last one may not be repeated."""
        self._has_faulty_node = False

    @property
    def is_hopeless(self) -> bool:
        """Whether another attempt on these nodes would end at the same place."""
        return self.repeats >= MOST_REPEATS or self._has_faulty_node

    def look(self, slots: Sequence[Heartbeat], *, is_over: bool = False) -> None:
        """Takes note of the attempts that have ended since the last call.

        Args:
            slots: the heartbeats of the node's workers.
            is_over: whether the present attempt has ended.
        """
        present = max((slot.attempt for slot in slots), default=0)
        has_failed = is_over or any(
            slot.phase is WorkerPhase.FAILED and slot.attempt == present for slot in slots
        )
        while self._count < present + has_failed:
            error = first_error(self._logs, self._count)
            self._has_faulty_node |= error is not None and error.type == FAULTY_NODE
            self._add(place_of(error))
            self._count += 1

    def _add(self, place: str | None) -> None:
        self._places.insert(0, place)
        self._offsets.insert(0, EventTail(self._events, from_end=True).offset)
        self.repeats = count_repeats(self._places)
        if self.repeats < 2:
            return
        first = self._offsets[self.repeats - 1]
        if has_newer_checkpoint(EventTail(self._events, offset=first).read()):
            del self._places[1:], self._offsets[1:]
            self.repeats = 1
