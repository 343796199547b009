"""When a program counts as hung whose steps are observed from outside, as a pure computation."""

from __future__ import annotations

from dataclasses import dataclass

LEARNED_INTERVALS = 3
"""Number of intervals between observed steps after which a program is watched."""
_TIMES_LONGEST = 3.0
"""A limit is never less than so many times the longest interval so far."""


@dataclass
class ProgramWatch:
    """Learns how often a program reports steps. Times are of one clock, in seconds.

    The program does not say when it saves or validates. Therefore it counts as hung only after
    `silence_s` without a step and without any output, and after `step_s` without a step although
    there is other output, as a thread may print whatever the others do.

    Args:
        silence_s: None: the program is not watched.
        step_s: None: other output is enough.
    """

    silence_s: float | None
    step_s: float | None
    _step: int | None = None
    _step_at: float = 0.0
    _output_at: float = 0.0
    _intervals: int = 0
    _longest_s: float = 0.0

    def add_output(self, now: float) -> None:
        """Takes note of output at `now`."""
        self._output_at = now

    def add_step(self, step: int, now: float) -> None:
        """Takes note of a finished step that was observed at `now`."""
        if step == self._step:
            return
        if self._step is not None:
            self._intervals += 1
            self._longest_s = max(self._longest_s, now - self._step_at)
        self._step, self._step_at = step, now
        self.add_output(now)

    def deadline(self) -> float | None:
        """Returns when the program counts as hung, unless it reports something before; None: it is
        not watched, or it is not known yet how often it reports steps."""
        if self.silence_s is None or self._intervals < LEARNED_INTERVALS:
            return None
        least = _TIMES_LONGEST * self._longest_s
        quiet = max(self._step_at, self._output_at) + max(self.silence_s, least)
        if self.step_s is None:
            return quiet
        return min(quiet, self._step_at + max(self.step_s, self.silence_s, least))
