"""What a whole run takes, from its estimate: time, node-hours, failures, storage and money.
Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from checkpointing.store.write.packer import PACK_BYTES
from hpckit.config.batch_size import global_batch, samples_before
from hpckit.config.spec import RunSpec
from hpckit.planner import store_costs
from hpckit.planner.run_estimate import RunEstimate, as_configured
from hpckit.planner.step_time import speed
from hpckit.planner.store_costs import CheckpointShape, StoreRequests

_HOUR_S = 3600.0
_CHUNK_BYTES = 4 << 20
"""Bytes of a chunk as assumed here; those of real tensors are between half and twice of it."""
_ITEMS = 4
"""Items of the state of a run: model, optimizer, loader, and the run itself."""


@dataclass(frozen=True)
class HourlyPrices:
    """Prices of an hour, in any currency; None: not known."""

    node: float | None = None
    gpu: float | None = None

    def money(self, node_hours: float, gpu_hours: float) -> float | None:
        """Return what these hours cost; None: no price is known."""
        known = [
            hours * price
            for hours, price in ((node_hours, self.node), (gpu_hours, self.gpu))
            if price is not None
        ]
        return sum(known) if known else None


@dataclass(frozen=True)
class RunTotals:
    """What a whole run takes, without the time in the queue."""

    steps: int
    training_s: float
    """Seconds of all steps, if nothing failed and nothing was saved."""
    wall_s: float
    """Seconds with saves, failures and repeated steps."""
    goodput: float
    interval_s: float
    """Seconds between saves."""
    failures: float
    """Number of failures to expect."""
    node_hours: float
    gpu_hours: float
    saves: int
    """Number of saves to expect."""
    kept: int
    """Largest number of checkpoints that the store holds at a time."""
    kept_bytes: int
    """Bytes of them, without compression and shared chunks."""
    save_gbps: float
    """GB/s that the store takes on average, without compression."""
    save_requests: StoreRequests
    """Requests of a save."""
    money: float | None
    """None: no price is known."""

    @property
    def lost_s(self) -> float:
        """Seconds of saves, restarts and repeated steps."""
        return self.wall_s - self.training_s

    def record(self) -> dict[str, Any]:
        """Return the totals as plain data."""
        return {**asdict(self), "lost_s": self.lost_s}


def run_totals(spec: RunSpec, plan: RunEstimate, prices: HourlyPrices) -> RunTotals | None:
    """Return what the run takes with its configured save interval, or else with the best one. None:
    its speed is not known, or it never makes progress."""
    saves = plan.configured or plan.goodput
    if plan.speed is None or saves.fraction <= 0:
        return None
    training_s = full_steps(spec, plan.world) * plan.speed.step.total
    wall_s = training_s / saves.fraction
    count = max(1, round(training_s / saves.interval_s))
    kept = _kept(spec, count)
    node_hours = wall_s * plan.nodes / _HOUR_S
    gpu_hours = wall_s * plan.world / _HOUR_S
    return RunTotals(
        steps=spec.train.steps,
        training_s=training_s,
        wall_s=wall_s,
        goodput=saves.fraction,
        interval_s=saves.interval_s,
        failures=wall_s / saves.mtbf_s,
        node_hours=node_hours,
        gpu_hours=gpu_hours,
        saves=count,
        kept=kept,
        kept_bytes=kept * plan.checkpoint,
        save_gbps=plan.checkpoint / saves.interval_s / 1e9,
        save_requests=store_costs.save(_shape(plan, kept)),
        money=prices.money(node_hours, gpu_hours),
    )


def full_steps(spec: RunSpec, world: int) -> float:
    """Return the steps of the run, in steps with the whole batch: fewer with `train.batch_ramp`."""
    return samples_before(spec, spec.train.steps) / global_batch(spec, world)


@dataclass(frozen=True)
class CostCase:
    """The totals of a run whose cards reach another share of their peak."""

    utilisation: float
    totals: RunTotals


def cost_cases(
    spec: RunSpec, plan: RunEstimate, prices: HourlyPrices, utilisations: Sequence[float]
) -> list[CostCase]:
    """Return the totals for each utilisation."""
    found = []
    for one in utilisations:
        if plan.speed is None:
            break
        timed = speed(spec, plan.world, plan.card, one)
        configured = as_configured(spec, plan.goodput, timed)
        other = replace(plan, speed=timed, configured=configured)
        totals = run_totals(spec, other, prices)
        if totals is not None:
            found.append(CostCase(one, totals))
    return found


def _kept(spec: RunSpec, saves: int) -> int:
    """Return the largest number of checkpoints at a time: those of the retention policy, and the
    one that is being written."""
    keep = spec.checkpoint.keep
    found = keep.last + 1
    if keep.every is not None:
        found += spec.train.steps // keep.every
    if keep.best is not None:
        found += 1
    return min(found, saves + 1)


def _shape(plan: RunEstimate, kept: int) -> CheckpointShape:
    chunks = max(1, math.ceil(plan.checkpoint / plan.world / _CHUNK_BYTES))
    size = max(1, math.ceil(plan.checkpoint / plan.world / chunks))
    return CheckpointShape(plan.world, plan.nodes, _ITEMS, chunks, size, PACK_BYTES, kept)
