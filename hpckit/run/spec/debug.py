"""Help with finding out."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from hpckit.run.spec.fields import GROUP, Count


@dataclass(frozen=True, config=GROUP)
class DrillSpec:
    """Faults that the supervisor plays on itself, to see the run come through them."""

    preempt_at: tuple[Count, ...]
    """Steps at which a real SIGUSR2 is sent to the supervisor."""
    nodes: tuple[Count, ...]
    """Nodes of the 1st, 2nd, … generation, the last for all later ones; empty: `launch.nodes`."""


@dataclass(frozen=True, config=GROUP)
class DebugSpec:
    """Help with finding out (`conf/debug/`)."""

    ledger: bool
    """Each rank writes down the sample keys of every step, to be counted afterwards."""
    deterministic: bool
    """Only kernels with a fixed order of summation; fails where there is none."""
    drill: DrillSpec
    """A drill."""
