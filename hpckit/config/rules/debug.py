"""Rules for canaries, profiles, drills and spikes, as pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from hpckit.config.last_step import last_step, planned_steps
from hpckit.config.spec import RunSpec

DEFAULT_CANARY_STEPS = 100
"""The value of `debug.canary.steps` in `conf/debug/none.yaml`, which a shorter run cuts short."""


def debug_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of these rules, one line each, the key first."""
    yield from _canary(spec)
    yield from _profile(spec)
    if spec.debug.overfit and spec.heal.on_spike is not None:
        yield "heal.on_spike: must be null with debug.overfit, whose steps all have one batch"
    yield from _skip(spec)
    yield from drill_violations(spec)


def _skip(spec: RunSpec) -> Iterator[str]:
    heal = spec.heal
    if heal.on_spike != "skip":
        return
    if heal.patience != 1:
        yield (
            f"heal.patience: must be 1 with heal.on_spike=skip, got {heal.patience}: an update is "
            "left out before later steps are known"
        )
    if heal.before != 0:
        yield (
            f"heal.before: must be 0 with heal.on_spike=skip, got {heal.before}: only "
            "heal.on_spike=rollback undoes an update"
        )


def _canary(spec: RunSpec) -> Iterator[str]:
    canary = spec.debug.canary
    if (canary.mode is None) != (canary.file is None):
        what = "is required" if canary.file is None else "must be null"
        yield f"debug.canary.file: {what} when debug.canary.mode={canary.mode or 'null'}"
    is_given = canary.mode is not None and canary.steps != DEFAULT_CANARY_STEPS
    if is_given and canary.steps > spec.train.steps:
        yield (f"debug.canary.steps: {canary.steps} is more than train.steps={spec.train.steps}")


def _profile(spec: RunSpec) -> Iterator[str]:
    profile, steps = spec.debug.profile, last_step(spec)
    if profile.costs and profile.start is None:
        yield "debug.profile.costs: give the first step, too, as in debug.profile.start=10"
    if profile.start is None:
        return
    last = profile.start + profile.steps - 1 + (1 if profile.costs else 0)
    if last > steps:
        yield (
            f"debug.profile.start: steps {profile.start} to {last} are not all within the {steps} "
            "steps of the run"
        )


def drill_violations(spec: RunSpec) -> Iterator[str]:
    """Yields the violations of the rules for drills."""
    drill, steps = spec.debug.drill, planned_steps(spec)
    if list(drill.preempt_at) != sorted(set(drill.preempt_at)):
        yield f"debug.drill.preempt_at: {list(drill.preempt_at)} must increase"
    if drill.preempt_at and steps is not None and drill.preempt_at[-1] >= steps:
        yield f"debug.drill.preempt_at: step {drill.preempt_at[-1]} is not before the last, {steps}"
    if spec.cluster.kind == "slurm" and max(drill.nodes, default=0) > spec.launch.nodes:
        yield (
            f"debug.drill.nodes: {max(drill.nodes)} is more than launch.nodes={spec.launch.nodes}, "
            "which a job cannot exceed"
        )
