"""The share of its time that a run trains, from what its faults were measured to cost.

Closed forms, with no free constant: a campaign's report sets what they say beside what it measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PARTS = ("detect", "queue", "meet", "load", "again")


@dataclass(frozen=True)
class MeasuredFault:
    """One kind of fault: how often, and means over the faults of this kind."""

    per_node_hour: float
    """Faults, by the hours of wall clock of all nodes together."""
    detect_s: float
    """From the fault until it was known."""
    queue_s: float
    """Until there were nodes."""
    meet_s: float
    """From then until all ranks began to load: processes and rendezvous."""
    load_s: float
    """From then to the first step."""
    steps_again: float
    """That were done before the fault, and once more after it."""

    @property
    def away_s(self) -> float:
        """From the fault to the first step after it, done before or not."""
        return self.detect_s + self.queue_s + self.meet_s + self.load_s


@dataclass(frozen=True)
class FaultCampaign:
    """A run and its faults."""

    nodes: int
    step_s: float
    """Of a step while nothing is wrong, without the stalls of saves."""
    stall_s: float
    """Of a save, per step of training: its stall over the steps from one to the next."""
    faults: Mapping[str, MeasuredFault]
    """By kind."""
    is_patient: bool
    """Each fault comes only after the run trains again; else at any moment (a Poisson process), and
    what it strikes while it comes back has to begin that anew."""


@dataclass(frozen=True)
class GoodputPrediction:
    """Shares of the time from the run's start to its end."""

    ettr: float
    """In steps that count: kept steps x step_s / time."""
    stall: float
    parts: dict[str, float]
    """That faults took, by `PARTS`."""
    kinds: dict[str, float]
    """The same, by kind of fault: `ettr`, `stall` and either of the two add up to 1."""


def predict(campaign: FaultCampaign) -> GoodputPrediction:
    """What a campaign should measure.

    Patient faults of kind k, r_k a second that cost c_k each, leave a share of 1 - sum(r_k c_k). Of
    those that are not, with r in all, one that needs d undisturbed seconds to be over gets them
    with probability exp(-r d), and else takes as long as the next one lets it: the mean of an
    outage follows from that, and a run is in turn up for 1 / r and away for so long.

    Raises:
        ValueError: a rate, time or number of steps is below 0 or no number, or a step takes none.
    """
    _check(campaign)
    faults = {kind: one for kind, one in campaign.faults.items() if one.per_node_hour > 0}
    cells = _patient(campaign, faults) if campaign.is_patient else _restless(campaign, faults)
    lost = sum(cells.values())
    if lost > 1:  # it never gets anywhere
        cells = {cell: share / lost for cell, share in cells.items()}
    up = max(0.0, 1 - lost)
    stall = up * campaign.stall_s / (campaign.step_s + campaign.stall_s)
    return GoodputPrediction(
        ettr=up - stall,
        stall=stall,
        parts={part: sum(v for (_, p), v in cells.items() if p == part) for part in PARTS},
        kinds={kind: sum(v for (k, _), v in cells.items() if k == kind) for kind in faults},
    )


Cells = dict[tuple[str, str], float]  # shares of the time, by kind and part


def _steps(one: MeasuredFault) -> Sequence[tuple[str, float]]:
    names = ("detect", "queue", "meet", "load")
    return tuple(zip(names, (one.detect_s, one.queue_s, one.meet_s, one.load_s), strict=True))


def _rate(campaign: FaultCampaign, one: MeasuredFault) -> float:
    """Faults of the whole job in a second."""
    return campaign.nodes * one.per_node_hour / 3600


def _again_s(campaign: FaultCampaign, one: MeasuredFault) -> float:
    return one.steps_again * (campaign.step_s + campaign.stall_s)


def _patient(campaign: FaultCampaign, faults: Mapping[str, MeasuredFault]) -> Cells:
    cells: Cells = {}
    for kind, one in faults.items():
        for part, seconds in (*_steps(one), ("again", _again_s(campaign, one))):
            cells[kind, part] = _rate(campaign, one) * seconds
    return cells


def _restless(campaign: FaultCampaign, faults: Mapping[str, MeasuredFault]) -> Cells:
    rates = {kind: _rate(campaign, one) for kind, one in faults.items()}
    rate = sum(rates.values())
    if not rate:
        return {}
    ends = sum(rates[k] / rate * math.exp(-rate * one.away_s) for k, one in faults.items())
    if ends < 1e-300:
        return {(kind, "load"): rates[kind] / rate for kind in faults}
    strikes = 1 / ends  # faults of one outage, the first included
    away: Cells = {}
    for kind, one in faults.items():
        begun = 0.0
        for part, seconds in _steps(one):
            spent = (math.exp(-rate * begun) - math.exp(-rate * (begun + seconds))) / rate
            away[kind, part] = strikes * rates[kind] / rate * spent
            begun += seconds
    cycle = 1 / rate + sum(away.values())
    cells = {cell: seconds / cycle for cell, seconds in away.items()}
    for kind, one in faults.items():  # what an outage loses, its first fault has lost
        cells[kind, "again"] = rates[kind] / rate * _again_s(campaign, one) / cycle
    return cells


def _check(campaign: FaultCampaign) -> None:
    numbers = {name: getattr(campaign, name) for name in ("nodes", "step_s", "stall_s")}
    for kind, one in campaign.faults.items():
        numbers |= {f"{name} of {kind}": value for name, value in vars(one).items()}
    for name, value in numbers.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is a number from 0 on, got {value!r}")
    if not campaign.step_s:
        raise ValueError("step_s is above 0, got 0")
