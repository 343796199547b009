"""Debugging options."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hpckit.config.spec.field_types import GROUP, Count, Positive, Text


@dataclass(frozen=True, config=GROUP)
class DrillSpec:
    """Planned preemptions, to test that a run recovers from them."""

    preempt_at: tuple[Count, ...]
    """Steps at which the supervisor receives a real SIGUSR2."""
    nodes: tuple[Count, ...]
    """Number of nodes of the 1st, 2nd, … generation; the last number holds for all later ones.
    Empty: `launch.nodes`."""


@dataclass(frozen=True, config=GROUP)
class CanarySpec:
    """A canary run before a large job: only the first steps, from scratch, compared with recorded
    values."""

    mode: Literal["record", "check"] | None
    """record: write `file`; check: compare with `file`, and fail permanently at the first step that
    differs; null: train normally."""
    steps: Count
    """Number of steps. The learning rate schedule is still that of `train.steps`."""
    file: Text | None
    """JSON file with the loss and the gradient norm of each step; it must be null without a
    `mode`."""
    tolerance: Positive
    """Largest accepted difference, relative to the larger value."""


@dataclass(frozen=True, config=GROUP)
class ProfileSpec:
    """Steps that torch.profiler traces, into `profile/` of the run directory."""

    start: Annotated[int, Field(ge=2)] | None
    """First step to trace; the step before it warms up the profiler. null: off."""
    steps: Count
    """Number of steps to trace."""
    costs: bool
    """Whether rank 0 writes what these steps cost by operation, and in one more step counts
    operations, bytes and the memory of activations by layer, in place of traces. See
    `hpckit bench profile`."""


@dataclass(frozen=True, config=GROUP)
class DebugSpec:
    """Debugging options (`conf/debug/`)."""

    ledger: bool
    """Whether each rank records the sample keys of every step, so that they can be counted."""
    deterministic: bool
    """Whether only deterministic kernels are used (torch.use_deterministic_algorithms); the run
    fails if an operation has none."""
    overfit: bool
    """Whether every step trains on the first batch: the loss must fall to nearly zero."""
    canary: CanarySpec
    """Comparison with recorded values."""
    profile: ProfileSpec
    """Profiler traces."""
    drill: DrillSpec
    """Planned preemptions."""
