"""The curves of a run that `hpckit top` shows when it is open."""

from __future__ import annotations

from collections.abc import Sequence

from hpckit.events.event_validation import read_valid_events
from hpckit.events.schema import Event, StepLogged
from hpckit.report.terminal.top_view import RunCurves
from hpckit.rundir.directory import RunDir

_UNITS = {"tokens_per_s": "tok/s", "samples_per_s": "samples/s", "step_s": "s/step"}
"""Units of the measures of speed, the best first."""


def read_curves(run: RunDir) -> RunCurves:
    """Read the curves of a run.

    Raises:
        OSError: its events cannot be read.
    """
    return curves_of(read_valid_events(run).events)


def curves_of(events: Sequence[Event]) -> RunCurves:
    """Return loss and speed of each step, of repeated ones the newest record. Pure."""
    newest = {event.step: event for event in events if isinstance(event, StepLogged)}
    records = [event for _, event in sorted(newest.items())]
    loss = [event.loss for event in records if event.loss is not None]
    for name, unit in _UNITS.items():
        if speed := [float(event[name]) for event in records if event.get(name) is not None]:
            return RunCurves(loss, speed, unit)
    return RunCurves(loss)
