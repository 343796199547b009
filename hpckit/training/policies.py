"""When a run saves, and what of it is kept: the spec's words as the checkpointer's."""

from __future__ import annotations

from checkpointing import Auto, Best, Every, Last, Minutes, Steps
from hpckit.run.spec import CheckpointSpec, KeepSpec


def interval(spec: CheckpointSpec) -> Steps | Minutes | Auto | None:
    """When to save; None: at the end alone."""
    if spec.every_steps is not None:
        return Steps(spec.every_steps)
    if spec.mtbf_hours is not None:
        return Auto(mtbf_s=3600 * spec.mtbf_hours)
    return Minutes(spec.every_minutes) if spec.every_minutes is not None else None


def retention(spec: KeepSpec) -> list[Last | Every | Best]:
    """What to keep of it."""
    rules: list[Last | Every | Best] = [Last(spec.last)]
    if spec.every is not None:
        rules.append(Every(spec.every))
    if spec.best is not None:
        rules.append(Best(spec.best))
    return rules
