"""A closed-form prediction of the goodput from the measured cost of faults.

It has no free constants: a campaign's report compares it with the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PARTS = ("detect", "queue", "meet", "load", "again")


@dataclass(frozen=True)
class MeasuredFault:
    """A kind of fault: its rate, and means over the faults of this kind."""

    per_node_hour: float
    """Faults per hour of wall clock of all nodes together."""
    detect_s: float
    """Seconds from the fault until it was detected."""
    queue_s: float
    """Seconds until there were nodes."""
    meet_s: float
    """Seconds from then until all ranks began to load: processes and rendezvous."""
    load_s: float
    """Seconds from then to the first step."""
    steps_again: float
    """Number of steps that were done before the fault and repeated after it."""

    @property
    def away_s(self) -> float:
        """Return the seconds from the fault to the first step after it, new or repeated."""
        return self.detect_s + self.queue_s + self.meet_s + self.load_s


@dataclass(frozen=True)
class FaultCampaign:
    """A run and its faults."""

    nodes: int
    step_s: float
    """Seconds of an undisturbed step, without the stalls of saves."""
    stall_s: float
    """Seconds of stall per step: the stall of a save over the number of steps between two saves."""
    faults: Mapping[str, MeasuredFault]
    """Faults by kind."""
    is_patient: bool
    """Whether each fault comes only after the run trains again; else faults are a Poisson process,
    and one that hits a recovery makes it start again."""


@dataclass(frozen=True)
class GoodputPrediction:
    """The predicted shares of the time from the run's start to its end."""

    ettr: float
    """Share of steps that count: kept steps x step_s / time."""
    stall: float
    parts: dict[str, float]
    """Shares that faults took, by `PARTS`."""
    kinds: dict[str, float]
    """The same by kind of fault: `ettr`, `stall` and either of the two add up to 1."""


def predict(campaign: FaultCampaign) -> GoodputPrediction:
    """Predict what a campaign should measure.

    If faults are patient, those of kind k, at r_k per second and a cost of c_k each, leave a share
    of 1 - sum(r_k c_k). Otherwise, with a total rate of r, a recovery that needs d undisturbed
    seconds gets them with probability exp(-r d), and else is cut off by the next fault: this gives
    the mean duration of an outage, and a run alternates between 1 / r of training and one outage.

    Raises:
        ValueError: a rate, time or number of steps is negative or not a number, or a step takes no
            time.
    """
    _check(campaign)
    faults = {kind: one for kind, one in campaign.faults.items() if one.per_node_hour > 0}
    cells = _patient(campaign, faults) if campaign.is_patient else _poisson(campaign, faults)
    lost = sum(cells.values())
    if lost > 1:  # it never makes progress
        cells = {cell: share / lost for cell, share in cells.items()}
    up = max(0.0, 1 - lost)
    stall = up * campaign.stall_s / (campaign.step_s + campaign.stall_s)
    return GoodputPrediction(
        ettr=up - stall,
        stall=stall,
        parts={part: sum(v for (_, p), v in cells.items() if p == part) for part in PARTS},
        kinds={kind: sum(v for (k, _), v in cells.items() if k == kind) for kind in faults},
    )


Cells = dict[tuple[str, str], float]  # shares of the time by kind and part


def _steps(one: MeasuredFault) -> Sequence[tuple[str, float]]:
    names = ("detect", "queue", "meet", "load")
    return tuple(zip(names, (one.detect_s, one.queue_s, one.meet_s, one.load_s), strict=True))


def _rate(campaign: FaultCampaign, one: MeasuredFault) -> float:
    """Return the faults of the whole job per second."""
    return campaign.nodes * one.per_node_hour / 3600


def _again_s(campaign: FaultCampaign, one: MeasuredFault) -> float:
    return one.steps_again * (campaign.step_s + campaign.stall_s)


def _patient(campaign: FaultCampaign, faults: Mapping[str, MeasuredFault]) -> Cells:
    cells: Cells = {}
    for kind, one in faults.items():
        for part, seconds in (*_steps(one), ("again", _again_s(campaign, one))):
            cells[kind, part] = _rate(campaign, one) * seconds
    return cells


def _poisson(campaign: FaultCampaign, faults: Mapping[str, MeasuredFault]) -> Cells:
    rates = {kind: _rate(campaign, one) for kind, one in faults.items()}
    rate = sum(rates.values())
    if not rate:
        return {}
    ends = sum(rates[k] / rate * math.exp(-rate * one.away_s) for k, one in faults.items())
    if ends < 1e-300:
        return {(kind, "load"): rates[kind] / rate for kind in faults}
    faults_per_outage = 1 / ends  # faults of one outage, including the first
    away: Cells = {}
    for kind, one in faults.items():
        begun = 0.0
        for part, seconds in _steps(one):
            spent = (math.exp(-rate * begun) - math.exp(-rate * (begun + seconds))) / rate
            away[kind, part] = faults_per_outage * rates[kind] / rate * spent
            begun += seconds
    cycle = 1 / rate + sum(away.values())
    cells = {cell: seconds / cycle for cell, seconds in away.items()}
    for kind, one in faults.items():  # the loss of an outage is that of its first fault
        cells[kind, "again"] = rates[kind] / rate * _again_s(campaign, one) / cycle
    return cells


def _check(campaign: FaultCampaign) -> None:
    numbers = {name: getattr(campaign, name) for name in ("nodes", "step_s", "stall_s")}
    for kind, one in campaign.faults.items():
        numbers |= {f"{name} of {kind}": value for name, value in vars(one).items()}
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be 0 or more, got {value!r}")
    if not campaign.step_s:
        raise ValueError("step_s must be above 0, got 0")
