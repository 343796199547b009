"""How long a run still trains at its present speed. Pure."""

from __future__ import annotations

from hpckit.config.batch_size import present_steps
from hpckit.report.overview import Overview
from hpckit.report.run_state import RunState


def remaining_s(it: Overview) -> float | None:
    """Return the seconds that the steps to go take at the speed of the newest ones, without any
    interruption. None: the run does not train now, has no last step, or its speed is not known."""
    p = it.progress
    if it.state is not RunState.RUNNING or not p.step_s or not p.steps:
        return None
    # later steps of a batch that grows take longer
    left = present_steps(it.spec, p.step, p.steps) if it.spec else p.steps - p.step
    return max(0.0, left * p.step_s)
