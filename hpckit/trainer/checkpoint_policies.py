"""Save policies and retention policies of the checkpointer, made from the spec."""

from __future__ import annotations

from collections.abc import Callable

from checkpointing import Auto, Best, Every, Last, Minutes, Steps
from checkpointing.save_policy import SavePolicy
from hpckit.config.spec import CheckpointSpec, KeepSpec


def interval(spec: CheckpointSpec) -> Steps | Minutes | Auto | None:
    """Return when to save; None: at the end alone."""
    if spec.every_steps is not None:
        return Steps(spec.every_steps)
    if spec.mtbf_hours is not None:
        return Auto(mtbf_s=3600 * spec.mtbf_hours)
    return Minutes(spec.every_minutes) if spec.every_minutes is not None else None


def limit_clock_checks(
    due: Callable[[int], bool], every: SavePolicy | None, is_time: Callable[[int], bool]
) -> Callable[[int], bool]:
    """Limit how often the clock is checked: `due` by the clock is an exchange of all ranks, and is
    asked only when `is_time` is true."""
    if every is None or not every.uses_clock:
        return due
    return lambda step: is_time(step) and due(step)


def retention(spec: KeepSpec) -> list[Last | Every | Best]:
    """Return the retention policy."""
    rules: list[Last | Every | Best] = [Last(spec.last)]
    if spec.every is not None:
        rules.append(Every(spec.every))
    if spec.best is not None:
        rules.append(Best(spec.best))
    return rules
