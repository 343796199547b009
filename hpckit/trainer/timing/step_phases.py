"""Step phases, which follow one another on one clock, so that their times add up to that of the
step."""

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
_MOST_MARKS = 512  # marks on the stream of a GPU, after which those that it has passed are added up


def untimed(part: Part) -> AbstractContextManager[object]:
    """Return a context that measures nothing, for code that has no step phases."""
    return nullcontext()


class PhaseTimeline(Protocol):
    """A clock to which the begin of each phase is reported. Before the first report the phase is
    "other"."""

    def mark(self, part: Part) -> None:
        """Begin the phase `part`."""

    def read(self) -> dict[Part, float]:
        """Return the seconds of each phase since the last `take`, whose sum is the time since
        then."""

    def take(self) -> dict[Part, float]:
        """Return what `read` returns, and begin again."""


class HostPhaseTimeline:
    """A timeline that uses the clock of the host."""

    def __init__(self) -> None:
        self._sums, self._part = _no_seconds(), PARTS[-1]
        self._since = time.perf_counter()

    def mark(self, part: Part) -> None:
        now = time.perf_counter()
        self._sums[self._part] += now - self._since
        self._part, self._since = part, now

    def read(self) -> dict[Part, float]:
        self.mark(self._part)
        return dict(self._sums)

    def take(self) -> dict[Part, float]:
        sums, self._sums = self.read(), _no_seconds()
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
    """A timeline that uses the clock of a GPU: how long its stream worked or waited in each phase.

    A wait of the host during which the GPU has work does not appear. Only `read` and `take` wait
    for the GPU.
    """

    def __init__(self, make_event: Callable[[], StreamEvent] = timing_event) -> None:
        self._make = make_event
        self._sums, self._part = _no_seconds(), PARTS[-1]
        self._marks: deque[tuple[StreamEvent, Part]] = deque()
        self._free: list[StreamEvent] = []
        self.mark(self._part)

    def mark(self, part: Part) -> None:
        event = self._free.pop() if self._free else self._make()
        event.record()
        self._marks.append((event, part))
        self._part = part
        if len(self._marks) % _MOST_MARKS == 0:
            while len(self._marks) > 1 and self._marks[1][0].query():
                self._add_oldest()

    def read(self) -> dict[Part, float]:
        self.mark(self._part)
        self._marks[-1][0].synchronize()
        while len(self._marks) > 1:
            self._add_oldest()
        return dict(self._sums)

    def take(self) -> dict[Part, float]:
        sums, self._sums = self.read(), _no_seconds()
        return sums

    def _add_oldest(self) -> None:
        event, part = self._marks.popleft()
        self._sums[part] += event.elapsed_time(self._marks[0][0]) / 1000
        self._free.append(event)


class StepPhases:
    """Splits the time of this process into phases. The time of a phase within another one counts
    only as that of the inner one."""

    def __init__(self, timeline: PhaseTimeline) -> None:
        self._timeline = timeline
        self._open: list[Part] = [PARTS[-1]]
        self._blocks = {part: _Block(self, part) for part in PARTS}

    @classmethod
    def on(cls, device: torch.device) -> StepPhases:
        """Return step phases that use the clock of `device`."""
        return cls(DevicePhaseTimeline() if device.type == "cuda" else HostPhaseTimeline())

    def timed(self, part: Part) -> AbstractContextManager[object]:
        """Count the time of this block as the step phase `part`.

        Raises:
            TrainingError: there is no such phase.
        """
        if part not in self._blocks:
            raise TrainingError(f"run.timed({part!r}): the step phases are {', '.join(PARTS)}")
        return self._blocks[part]

    def begin(self, part: Part) -> None:
        """Begin a phase, which lasts until `end`."""
        self._open.append(part)
        self._timeline.mark(part)

    def end(self) -> None:
        """End the phase that began last."""
        self._open.pop()
        self._timeline.mark(self._open[-1])

    def read(self) -> list[float]:
        """Return the seconds of each of `PARTS` since the last `take`. It waits for the GPU."""
        sums = self._timeline.read()
        return [sums[part] for part in PARTS]

    def take(self) -> list[float]:
        """Return what `read` returns, and begin again."""
        sums = self._timeline.take()
        return [sums[part] for part in PARTS]


class _Block(AbstractContextManager[object]):
    def __init__(self, phases: StepPhases, part: Part) -> None:
        self._phases, self._part = phases, part

    def __enter__(self) -> None:
        self._phases.begin(self._part)

    def __exit__(self, *_: object) -> None:
        self._phases.end()


def _no_seconds() -> dict[Part, float]:
    return dict.fromkeys(PARTS, 0.0)
