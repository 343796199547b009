"""How many steps a run has. Pure."""

from __future__ import annotations

from hpckit.config.spec import RunSpec


def last_step(spec: RunSpec) -> int:
    """After which it is done."""
    canary = spec.debug.canary
    return spec.train.steps if canary.mode is None else canary.steps
