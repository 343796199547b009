"""Scenarios of a large job for `hpckit.planner.goodput.failure_simulation`, by where its snapshots
are kept."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from statistics import mean, stdev
from typing import Any

from hpckit.planner.goodput.failure_simulation import (
    SimulatedFault,
    SimulatedJob,
    SimulatedSaves,
    TimeBreakdown,
    simulate,
)

TIERS = ("store", "memory", "neighbours")
"""What a run can resume from: the store alone; also the memory of the remaining nodes; or also that
of the next node, which holds a replica."""
OVERLAPPED = 0.15
"""Stall of a snapshot relative to the time of one plain copy; the rest
overlaps with forward and backward (`benchmarks.checkpoint.staging_stall`)."""
FEWEST_S = 6.0
"""Least seconds between two snapshots: a step of Llama 3 405B, of 16M tokens at 400 TFLOP/s from
each of 16,384 GPUs (Grattafiori et al. 2024, table 4), since saves fall between steps."""
_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Fleet:
    """The nodes of the job, with known or assumed figures."""

    gpus: int
    gpus_per_node: int
    state_gb: float
    """GB of parameters and the optimizer's state, over all ranks."""
    mtbf_hours: float
    """Hours of one node between two faults of the kinds worker, node and hang together."""
    lost_share: float
    """Share of these faults that take the node away."""
    hang_share: float
    """Share of these faults after which no process ends but the job makes no progress."""
    preempt_hours: float
    """Hours between two preemptions of the job; infinite: none."""
    spares: int
    shrink: int
    """Number of missing nodes without which it trains instead of waiting."""
    repair_hours: float
    queue_s: float
    """Mean seconds that the successor of a preempted job waits."""
    store_gbps: float
    """GB/s of the store, for all nodes together."""
    manifest_s: float
    """Seconds to write a checkpoint's manifest after its last byte."""
    manifest_read_s: float
    """Seconds to read what each node needs of it before the first byte of a restore."""
    host_gbps: float
    """GB/s from the GPUs of a node to its memory."""
    network_gbps: float
    """GB/s from a node to the next one."""
    detect_s: float
    """Seconds until a fault other than a hang is detected."""
    hang_s: float
    """Seconds until a hang is detected."""
    restart_s: float
    """Seconds for processes and rendezvous."""
    interval_s: float | None
    """Seconds between two snapshots; None: the best interval."""
    stall_s: float | None
    """Seconds that training waits for a snapshot; None: a share of the copy to the node's
    memory."""

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)

    @property
    def mtbf_s(self) -> float:
        """Return the seconds between two faults of the whole job."""
        return 1 / sum(1 / fault.mtbf_s for fault in faults(self))


@dataclass(frozen=True)
class TierOutcome:
    """The result of several courses of one scenario."""

    tier: str
    interval_s: float
    goodput: float
    spread: float
    """Standard deviation over courses."""
    lowest: float
    highest: float
    shares: dict[str, float]
    """Shares of the time by part."""
    shares_of: dict[str, dict[str, float]]
    """Shares of the time by kind of fault and part."""

    def record(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return vars(self)


def faults(fleet: Fleet) -> tuple[SimulatedFault, ...]:
    """Return the faults of the job by kind."""

    def mtbf_s(share: float) -> float:
        return _HOUR * fleet.mtbf_hours / fleet.nodes / share if share > 0 else inf

    crashes = max(0.0, 1 - fleet.lost_share - fleet.hang_share)
    detect_s, meet_s = fleet.detect_s, fleet.restart_s
    return (
        SimulatedFault("worker", mtbf_s(crashes), "worker", detect_s, meet_s),
        SimulatedFault("node", mtbf_s(fleet.lost_share), "node", detect_s, meet_s),
        SimulatedFault("hang", mtbf_s(fleet.hang_share), "worker", fleet.hang_s, meet_s),
        SimulatedFault("preemption", _HOUR * fleet.preempt_hours, "job", 0.0, meet_s),
    )


def scenario(fleet: Fleet, tier: str) -> tuple[SimulatedJob, SimulatedSaves]:
    """Return the job to simulate.

    The save interval is the given or the best one (Young 1974), but if only the store counts, at
    least as long as a save into it.
    """
    own_gb = fleet.state_gb / fleet.nodes
    stall_s = OVERLAPPED * own_gb / fleet.host_gbps if fleet.stall_s is None else fleet.stall_s
    durable_s = fleet.state_gb / fleet.store_gbps + fleet.manifest_s
    best_s = max(FEWEST_S, sqrt(2 * stall_s * fleet.mtbf_s))
    interval_s = best_s if fleet.interval_s is None else fleet.interval_s
    replicas = int(tier == "neighbours")
    return (
        SimulatedJob(
            fleet.nodes,
            fleet.spares,
            fleet.nodes - fleet.shrink,
            _HOUR * fleet.repair_hours,
            fleet.queue_s,
        ),
        SimulatedSaves(
            interval_s=max(interval_s, durable_s) if tier == "store" else interval_s,
            stall_s=stall_s,
            durable_s=durable_s,
            in_memory=tier != "store",
            replicas=replicas,
            load_memory_s=own_gb / fleet.host_gbps + replicas * own_gb / fleet.network_gbps,
            load_store_s=fleet.manifest_read_s + fleet.state_gb / fleet.store_gbps,
        ),
    )


def outcome(fleet: Fleet, tier: str, days: float, courses: int, seed: int) -> TierOutcome:
    """Simulate `courses` of `days` each; deterministic for a seed."""
    job, saves = scenario(fleet, tier)
    times = [
        simulate(job, faults(fleet), saves, days * _DAY, random.Random(f"{seed}/{number}"))
        for number in range(courses)
    ]
    goodputs = [time.goodput for time in times]
    return TierOutcome(
        tier=tier,
        interval_s=saves.interval_s,
        goodput=mean(goodputs),
        spread=stdev(goodputs) if courses > 1 else 0.0,
        lowest=min(goodputs),
        highest=max(goodputs),
        shares=_mean(time.shares() for time in times),
        shares_of=_mean_of(times),
    )


def _mean_of(times: list[TimeBreakdown]) -> dict[str, dict[str, float]]:
    kinds = sorted({kind for time in times for kind in time.costs})
    each = [time.shares_of() for time in times]
    return {kind: _mean(shares.get(kind, {}) for shares in each) for kind in kinds}


def _mean(each: Iterable[Mapping[str, float]]) -> dict[str, float]:
    found = list(each)
    parts = dict.fromkeys(part for shares in found for part in shares)
    return {part: mean(shares.get(part, 0.0) for shares in found) for part in parts}
