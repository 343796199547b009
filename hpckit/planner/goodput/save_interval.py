"""The save interval and the goodput, from the rate of failures of nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from checkpointing.save_policy import Auto, SaveSituation
from hpckit.planner.assumptions import RESTART_S


@dataclass(frozen=True)
class Goodput:
    """The goodput of a run with failures."""

    mtbf_s: float
    """Mean seconds between two failures of the whole job."""
    stall_s: float
    """Seconds that training waits for a save."""
    durable_s: float
    """Seconds from the start of a save until it is durable."""
    interval_s: float
    """Seconds between saves."""
    fraction: float
    """Share of the time that is training which is not repeated."""


def goodput(mtbf_s: float, stall_s: float, durable_s: float) -> Goodput:
    """Return the best goodput of a job whose failures are `mtbf_s` seconds apart.

    The interval is the one that `checkpoint.mtbf_hours` makes a run use: Young and Daly's, but not
    shorter than a save takes to become durable.
    """
    now = SaveSituation(0, None, 0.0, None, stall_s=stall_s, durable_s=durable_s)
    return goodput_at(Auto(mtbf_s).interval_s(now), mtbf_s, stall_s, durable_s)


def goodput_at(interval_s: float, mtbf_s: float, stall_s: float, durable_s: float) -> Goodput:
    """Return the goodput with this save interval, but at least the time until a save is durable:
    saves in between are skipped."""
    interval_s = max(interval_s, durable_s)
    fraction = useful(interval_s, stall_s, RESTART_S + durable_s, mtbf_s)
    return Goodput(mtbf_s, stall_s, durable_s, interval_s, fraction)


def useful(interval_s: float, stall_s: float, restart_s: float, mtbf_s: float) -> float:
    """Return the share of the time that is useful training, by the model of the whole time in J. T.
    Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
    Generation Computer Systems 22(3), 2006.

    Args:
        restart_s: lost with each failure beside the work since the last save began; a save that is
            not durable yet counts here.
    """
    exponent = (interval_s + stall_s + restart_s) / mtbf_s
    if exponent > 500:  # it never makes progress
        return 0.0
    lost = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s)
    return interval_s / (mtbf_s * lost)
