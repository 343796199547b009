"""Step phases, which follow one another on one clock, so that they add up to the step's time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, Self

import torch

from hpckit.events.step_phases import PARTS, Part
from hpckit.trainer.errors import TrainingError

Timed = Callable[[Part], AbstractContextManager[object]]
_KEPT = 512  # marks on a GPU's stream that may wait before passed ones are added up


def untimed(part: Part) -> AbstractContextManager[object]:
    """Do nothing: the timer where nothing is timed."""
    return nullcontext()


class PhaseTimeline(Protocol):
    """A clock to which the begin of each phase is reported; until then the phase is "other"."""

    def mark(self, part: Part) -> None:
        """Begin the phase `part`."""

    def taken(self) -> dict[Part, float]:
        """Return the seconds of each phase since the last call; their sum is all the time since
        then."""


class HostPhaseTimeline:
    """A timeline by the clock of the process."""

    def __init__(self) -> None:
        self._sums, self._part = _nothing(), PARTS[-1]
        self._since = time.perf_counter()

    def mark(self, part: Part) -> None:
        now = time.perf_counter()
        self._sums[self._part] += now - self._since
        self._part, self._since = part, now

    def taken(self) -> dict[Part, float]:
        self.mark(self._part)
        sums, self._sums = self._sums, _nothing()
        return sums


class StreamEvent(Protocol):
    """The part of the interface of `torch.cuda.Event` that is used here."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Self, /) -> float: ...  # ms


def timing_event() -> StreamEvent:
    """Return a timing event on the current stream of the current GPU."""
    event: StreamEvent = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


class DevicePhaseTimeline:
    """A timeline by the stream on which a GPU computes: how long it worked for a phase or waited in
    it.

    Host waits that queued work hides are hidden here, too. Nothing waits for the GPU until seconds
    are taken.
    """

    def __init__(self, make_event: Callable[[], StreamEvent] = timing_event) -> None:
        self._make = make_event
        self._sums, self._part = _nothing(), PARTS[-1]
        self._marks: deque[tuple[StreamEvent, Part]] = deque()
        self._free: list[StreamEvent] = []
        self.mark(self._part)

    def mark(self, part: Part) -> None:
        event = self._free.pop() if self._free else self._make()
        event.record()
        self._marks.append((event, part))
        self._part = part
        if len(self._marks) % _KEPT == 0:
            while len(self._marks) > 1 and self._marks[1][0].query():
                self._add_first()

    def taken(self) -> dict[Part, float]:
        self.mark(self._part)
        self._marks[-1][0].synchronize()
        while len(self._marks) > 1:
            self._add_first()
        sums, self._sums = self._sums, _nothing()
        return sums

    def _add_first(self) -> None:
        event, part = self._marks.popleft()
        self._sums[part] += event.elapsed_time(self._marks[0][0]) / 1000
        self._free.append(event)


class StepPhases:
    """Splits the time of this process into phases. A phase inside another one counts only for
    itself."""

    def __init__(self, timeline: PhaseTimeline) -> None:
        self._timeline = timeline
        self._open: list[Part] = [PARTS[-1]]
        self._blocks = {part: _Block(self, part) for part in PARTS}

    @classmethod
    def on(cls, device: torch.device) -> StepPhases:
        """Create it with the GPU's clock if `device` is a GPU."""
        return cls(DevicePhaseTimeline() if device.type == "cuda" else HostPhaseTimeline())

    def timed(self, part: Part) -> AbstractContextManager[object]:
        """Count the time of this block as the phase `part` of the step.

        Raises:
            TrainingError: there is no such phase.
        """
        if part not in self._blocks:
            raise TrainingError(f"run.timed({part!r}): the parts of a step are {', '.join(PARTS)}")
        return self._blocks[part]

    def begin(self, part: Part) -> None:
        """Begin a phase, which lasts until `end`."""
        self._open.append(part)
        self._timeline.mark(part)

    def end(self) -> None:
        """End the phase that began last."""
        self._open.pop()
        self._timeline.mark(self._open[-1])

    def taken(self) -> list[float]:
        """Seconds of each of `PARTS` since the last call. Waits for the GPU."""
        sums = self._timeline.taken()
        return [sums[part] for part in PARTS]


class _Block(AbstractContextManager[object]):
    def __init__(self, parts: StepPhases, part: Part) -> None:
        self._parts, self._part = parts, part

    def __enter__(self) -> None:
        self._parts.begin(self._part)

    def __exit__(self, *_: object) -> None:
        self._parts.end()


def _nothing() -> dict[Part, float]:
    return dict.fromkeys(PARTS, 0.0)
