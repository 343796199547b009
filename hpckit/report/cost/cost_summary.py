"""What a run has cost: node-hours and GPU-hours by cause, money, energy, and the ETTR."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpckit.config.spec import RunSpec
from hpckit.events.event_validation import read_valid_events
from hpckit.events.schema import Event, RunStarted
from hpckit.report.cost.energy import known_joules
from hpckit.report.cost.node_hours import (
    EVALUATION,
    TRAINED,
    UNREPORTED,
    evaluation_seconds,
    held_nodes,
    node_seconds,
    queued_seconds,
)
from hpckit.report.ettr import ettr
from hpckit.report.evaluation.evaluation_records import EvaluationRecord, read_evaluations
from hpckit.report.history import History, build_history
from hpckit.report.performance.measured_step_time import step_time
from hpckit.report.performance.speed_report import last_spec
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import holder

_HOUR_S = 3600.0
_KWH_J = 3.6e6


@dataclass(frozen=True)
class Prices:
    """Prices of an hour, in any currency; None: not known."""

    node: float | None = None
    gpu: float | None = None


@dataclass(frozen=True)
class CostRates:
    """What is needed to say what a run has cost, beside its records."""

    prices: Prices = Prices()
    joules: Mapping[str, float] = field(default_factory=dict)
    """Energy by job, of those for which it is known."""


@dataclass(frozen=True)
class RunCost:
    """What one run, or several, have cost."""

    names: tuple[str, ...]
    node_hours: Mapping[str, float]
    """By cause, the largest first."""
    gpu_hours: float | None
    """Hours of all GPUs of these nodes that have a worker; None: the run has no GPUs."""
    queued_hours: float
    """Hours between its jobs."""
    energy_kwh: float | None
    """Energy of its jobs, if Slurm has measured that of each."""
    ettr: float | None
    """The ETTR, see `hpckit.report.ettr`; None: of several runs, or of a program that reports no
    steps."""
    money: float | None
    """In the currency of the prices; None: no price is known."""

    @property
    def total_hours(self) -> float:
        """All node-hours."""
        return sum(self.node_hours.values())

    def share(self, cause: str) -> float:
        """Return the share of the node-hours that a cause has."""
        return self.node_hours.get(cause, 0.0) / self.total_hours if self.total_hours else 0.0

    def record(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "runs": list(self.names),
            "node_hours": dict(self.node_hours),
            "total_node_hours": self.total_hours,
            "gpu_hours": self.gpu_hours,
            "trained": self.share(TRAINED),
            "queued_hours": self.queued_hours,
            "energy_kwh": self.energy_kwh,
            "ettr": self.ettr,
            "money": self.money,
        }


def read_cost(run: RunDir, prices: Prices) -> RunCost:
    """Return what a run has cost so far, by its records and, for its energy, by Slurm's
    accounting."""
    events, spec = read_valid_events(run).events, last_spec(run)
    is_alive = holder(run.lock) is not None
    until = time.time() if is_alive else _last_time(events)
    jobs = {event.job for event in events if isinstance(event, RunStarted) and event.job}
    history = build_history(events, alive=is_alive)
    evaluations = read_evaluations(run, events)
    rates = CostRates(prices, known_joules(jobs))
    return cost_of(run.name, history, events, spec, until, rates, evaluations, time.time())


def cost_of(
    name: str,
    history: History,
    events: Sequence[Event],
    spec: RunSpec | None,
    until: float,
    rates: CostRates | None = None,
    evaluations: Sequence[EvaluationRecord] = (),
    now: float | None = None,
) -> RunCost:
    """Return the cost of a run from its history and its events. Pure.

    Args:
        spec: its newest spec; None: of another version.
        until: up to when a supervisor that has not ended counts, in seconds since the epoch.
        rates: prices and energy, where they are known.
        evaluations: those of its checkpoints.
        now: up to when an evaluation that runs counts, in seconds since the epoch; None: `until`.
    """
    nodes = spec.launch.nodes + spec.elastic.spares if spec is not None else 1
    held = held_nodes(events, nodes, until)
    is_program = spec is not None and spec.command is not None
    seconds = node_seconds(history, events, held, is_program=is_program)
    hours = {cause: s / _HOUR_S for cause, s in seconds.items()}
    queued_s, total = queued_seconds(held), sum(hours.values())
    measured = step_time(history)
    per_node = _gpus_per_node(spec, has_gpu_memory=measured.is_gpu)
    gpu_hours = None if per_node is None else total * per_node
    is_own = spec is not None and spec.cluster.kind == "slurm"
    end = until if now is None else now
    evaluated = evaluation_seconds(evaluations, held, end, is_own_node=is_own) / _HOUR_S
    if evaluated > 0:
        hours[EVALUATION] = evaluated
        total += evaluated
        if gpu_hours is not None and spec is not None:
            gpu_hours += evaluated * spec.eval.nproc_per_node
    jobs = {event.job for event in events if isinstance(event, RunStarted) and event.job}
    rates = rates or CostRates()
    is_measured = jobs and jobs <= rates.joules.keys()
    return RunCost(
        names=(name,),
        node_hours=dict(sorted(hours.items(), key=lambda item: -item[1])),
        gpu_hours=gpu_hours,
        queued_hours=queued_s / _HOUR_S,
        energy_kwh=sum(rates.joules[job] for job in jobs) / _KWH_J if is_measured else None,
        ettr=None
        if UNREPORTED in hours
        else ettr(measured.seconds, sum(one.seconds for one in held) + queued_s),
        money=_money(total, gpu_hours, rates.prices),
    )


def sum_of(costs: Sequence[RunCost]) -> RunCost:
    """Return the cost of several runs together."""
    hours: dict[str, float] = {}
    for cost in costs:
        for cause, number in cost.node_hours.items():
            hours[cause] = hours.get(cause, 0.0) + number
    return RunCost(
        names=tuple(name for cost in costs for name in cost.names),
        node_hours=dict(sorted(hours.items(), key=lambda item: -item[1])),
        gpu_hours=_sum_of_known(cost.gpu_hours for cost in costs),
        queued_hours=sum(cost.queued_hours for cost in costs),
        energy_kwh=_sum_of_known(cost.energy_kwh for cost in costs),
        ettr=None,
        money=_sum_of_known(cost.money for cost in costs),
    )


def _sum_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _gpus_per_node(spec: RunSpec | None, *, has_gpu_memory: bool) -> int | None:
    """Return the GPUs of a node; with `cluster.device=auto`, the records of steps say whether there
    were any."""
    if spec is None or spec.cluster.device == "cpu":
        return None
    is_known = spec.cluster.device == "cuda" or has_gpu_memory
    return spec.launch.nproc_per_node if is_known else None


def _money(node_hours: float, gpu_hours: float | None, prices: Prices) -> float | None:
    found = []
    if prices.node is not None:
        found.append(node_hours * prices.node)
    if prices.gpu is not None and gpu_hours is not None:
        found.append(gpu_hours * prices.gpu)
    return sum(found) if found else None


def _last_time(events: Sequence[Event]) -> float:
    return events[-1].time if events else 0.0
