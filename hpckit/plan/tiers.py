"""A large job for `hpckit.plan.simulation`, by where its snapshots are kept."""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev
from typing import Any

from hpckit.plan.simulation import Job, Recovery, Saves, Time, simulate

TIERS = ("store", "memory", "neighbours")
"""Where a run can go on from: the store alone; the memory of nodes that are still there, too; or
that of the next node, too, which holds a copy."""
OVERLAPPED = 0.15
"""What a snapshot makes training wait, over the time of one bare copy (`benchmarks.staging_stall`;
the rest happens during forward and backward)."""
COMMIT_S = 2.0
"""From the last byte in the store to the commit that all ranks have agreed on."""
FEWEST_S = 1.0
"""Between two snapshots: oftener makes no difference."""
_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Fleet:
    """The job's nodes, and what is known or assumed of them."""

    gpus: int
    gpus_per_node: int
    state_gb: float
    """Of parameters and the optimizer's state, over all ranks."""
    mtbf_hours: float
    """Of one node."""
    lost_share: float
    """Of failures, those that take the node away."""
    spares: int
    repair_hours: float
    store_gbps: float
    """GB/s of the store, for all together."""
    host_gbps: float
    """GB/s from the GPUs of a node to its memory."""
    network_gbps: float
    """GB/s from a node to the next one."""
    detect_s: float
    restart_s: float

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    @property
    def mtbf_s(self) -> float:
        """Between two failures of the whole job."""
        return _HOUR * self.mtbf_hours / self.nodes


@dataclass(frozen=True)
class Outcome:
    """Of several courses of one scenario."""

    tier: str
    interval_s: float
    goodput: float
    spread: float
    """Standard deviation over courses."""
    shares: dict[str, float]
    """Of the time, by part."""

    def record(self) -> dict[str, Any]:
        """For programs."""
        return vars(self)


def scenario(fleet: Fleet, tier: str) -> tuple[Job, Saves, Recovery]:
    """What is simulated.

    Saves are as far apart as costs least (Young 1974), but where only the store counts no closer
    than it takes them.
    """
    own_gb = fleet.state_gb / fleet.nodes
    stall_s = OVERLAPPED * own_gb / fleet.host_gbps
    durable_s = fleet.state_gb / fleet.store_gbps + COMMIT_S
    best_s = sqrt(2 * stall_s * fleet.mtbf_s)
    interval_s = max(best_s, durable_s if tier == "store" else FEWEST_S)
    replicas = int(tier == "neighbours")
    load_s = own_gb / fleet.host_gbps + replicas * own_gb / fleet.network_gbps
    return (
        Job(
            fleet.nodes,
            _HOUR * fleet.mtbf_hours,
            fleet.lost_share,
            fleet.spares,
            _HOUR * fleet.repair_hours,
        ),
        Saves(interval_s, stall_s, durable_s, tier != "store", replicas),
        Recovery(fleet.detect_s, fleet.restart_s, load_s, fleet.state_gb / fleet.store_gbps),
    )


def outcome(fleet: Fleet, tier: str, days: float, courses: int, seed: int) -> Outcome:
    """Of `courses` of `days` each; the same for the same seed."""
    job, saves, recovery = scenario(fleet, tier)
    times = [
        simulate(job, saves, recovery, days * _DAY, random.Random(f"{seed}/{number}"))
        for number in range(courses)
    ]
    goodputs = [time.goodput for time in times]
    return Outcome(
        tier=tier,
        interval_s=saves.interval_s,
        goodput=mean(goodputs),
        spread=stdev(goodputs) if courses > 1 else 0.0,
        shares=_mean_shares(times),
    )


def _mean_shares(times: list[Time]) -> dict[str, float]:
    each = [time.shares() for time in times]
    return {part: mean(shares[part] for shares in each) for part in each[0]}
