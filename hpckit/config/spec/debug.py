"""Help with finding out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Positive, Text


@dataclass(frozen=True, config=GROUP)
class DrillSpec:
    """Faults that the supervisor plays on itself, to see the run come through them."""

    preempt_at: tuple[Count, ...]
    """Steps at which a real SIGUSR2 is sent to the supervisor."""
    nodes: tuple[Count, ...]
    """Nodes of the 1st, 2nd, … generation, the last for all later ones; empty: `launch.nodes`."""


@dataclass(frozen=True, config=GROUP)
class CanarySpec:
    """The first steps of the run in front of a large job, for themselves, from the very beginning:
    do they still come to what was recorded?"""

    mode: Literal["record", "check"] | None
    """record: write `file`; check: compare with it, and fail for good at the first step that
    differs; null: train."""
    steps: Count
    """Steps of it. The learning rate goes the way of `train.steps`."""
    file: Text | None
    """JSON file of loss and gradient norm of each step; null without a `mode`."""
    tolerance: Positive
    """Largest difference, relative to the larger value, that is let pass."""


@dataclass(frozen=True, config=GROUP)
class ProfileSpec:
    """What torch's profiler traces, into `profile/` of the run directory."""

    start: Annotated[int, Field(ge=2)] | None
    """The first step; the one before it warms the profiler up. null: it is off."""
    steps: Count
    """How many."""


@dataclass(frozen=True, config=GROUP)
class DebugSpec:
    """Help with finding out (`conf/debug/`)."""

    ledger: bool
    """Each rank writes down the sample keys of every step, to be counted afterwards."""
    deterministic: bool
    """Only kernels with a fixed order of summation; fails where there is none."""
    overfit: bool
    """Every step takes the first batch of the run again: the loss must fall to nearly nothing."""
    canary: CanarySpec
    """A canary."""
    profile: ProfileSpec
    """A profile."""
    drill: DrillSpec
    """A drill."""
