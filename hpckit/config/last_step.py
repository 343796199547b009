"""The number of steps of a run, by a pure function."""

from __future__ import annotations

from hpckit.config.spec import RunSpec


def last_step(spec: RunSpec) -> int:
    """Returns the step after which the run is done: with a canary, that of the canary, which is
    never longer than the run."""
    canary = spec.debug.canary
    return spec.train.steps if canary.mode is None else min(canary.steps, spec.train.steps)


def planned_steps(spec: RunSpec) -> int | None:
    """Returns the number of steps that the run is meant to have, or None for a program, which
    decides by itself when it has finished."""
    return None if spec.command is not None else last_step(spec)
