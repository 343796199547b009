"""The content of a page about a run, as plain data, built from the run's records. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from checkpointing import CheckpointInfo
from checkpointing.events import CheckpointCommitted, ReplicasDiffer
from hpckit.events.schema import (
    AgentKilled,
    AlertUndelivered,
    DataBound,
    DeepHealthProblemFound,
    Degraded,
    Event,
    HangExplained,
    NodeLost,
    NodeUnhealthy,
    SpikeFound,
    StepLogged,
    StragglerCost,
    StragglerEvicted,
    StragglerEvictionResult,
    StragglerFound,
    UpdateSkipped,
    WrongComputation,
)
from hpckit.report.cost.cost_summary import CostRates, RunCost, cost_of
from hpckit.report.evaluation.evaluation_lines import metric_curves
from hpckit.report.history import History, build_history
from hpckit.report.overview import Overview
from hpckit.report.page.curve_values import (
    Curve,
    curve_of,
    smooth,
    speed_of,
    values_of,
)
from hpckit.report.page.run_family import RunFamily
from hpckit.report.performance.measured_step_time import MeasuredStepTime, step_time
from hpckit.report.progress import (
    describe_hang,
    describe_skipped,
    describe_spike,
    describe_straggler,
)
from hpckit.report.straggler_summary import describe_cost, describe_eviction, describe_result
from hpckit.report.why import Explanation, RetryBudget, explain_run

_KEPT = {"committed": "kept", "partial": "partial"}


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint that was committed."""

    step: int
    id: str
    time: float
    """Seconds since the epoch."""
    seconds: float | None
    """Seconds from the save to its commit."""
    bytes: int | None
    """Bytes of the saved state."""
    new_bytes: int | None
    """Bytes that were written to the store for it."""
    stored_bytes: int | None
    """Bytes that the store holds of it, shared or not; None if it was removed."""
    state: str
    """`kept`, `partial`, `damaged` or `removed`; `unknown`: the store cannot be read."""

    @property
    def reuse(self) -> float | None:
        """Return the share of its stored bytes that the store had before."""
        if not self.stored_bytes or self.new_bytes is None:
            return None
        return max(0.0, 1 - self.new_bytes / self.stored_bytes)


@dataclass(frozen=True)
class LoaderTotals:
    """Loader statistics as sums over kept steps."""

    hits: int
    misses: int
    bypasses: int
    errors: int
    bound: str | None
    """What last limited the loaders, according to the events."""


@dataclass(frozen=True)
class RunFinding:
    """Something that was wrong with a node or a rank, or degraded."""

    time: float
    """Seconds since the epoch."""
    what: str
    where: str
    text: str


@dataclass(frozen=True)
class RecordDamage:
    """The records that could not be read."""

    torn: int = 0
    """Number of lines of the event file that do not hold an event."""
    unsound: int = 0
    """Number of events with a missing field, or one of a wrong type."""
    store: str | None = None
    """Why checkpoints could not be read."""


@dataclass(frozen=True)
class PageContent:
    """All the content of a page about one run."""

    now: float
    """Seconds since the epoch at which all of it was read."""
    overview: Overview
    history: History
    answer: Explanation
    in_steps: MeasuredStepTime
    cost: RunCost
    loss: Curve
    smoothed: Curve
    """The loss, without spikes and noise."""
    again: Curve
    """Losses of steps that do not count: repeated later, or lost."""
    validation: Curve
    speed: Curve
    rate: Curve
    """The learning rate."""
    norm: Curve
    """The norm of the gradients."""
    evaluation: tuple[tuple[str, Curve], ...]
    """The metrics of evaluations by name."""
    saved: tuple[SavedCheckpoint, ...]
    loader_totals: LoaderTotals | None
    findings: tuple[RunFinding, ...]
    damage: RecordDamage
    family: RunFamily


def build_content(
    overview: Overview,
    events: Sequence[Event],
    budget: RetryBudget | None,
    left: Iterable[CheckpointInfo] | None,
    damage: RecordDamage,
    now: float,
    family: RunFamily | None = None,
    rates: CostRates | None = None,
) -> PageContent:
    """Build the content of a page.

    Args:
        events: of the run, by time; valid ones.
        left: its checkpoints that still exist; None: not known.
        now: seconds since the epoch.
        family: the runs that it was forked from, and its forks.
        rates: what an hour costs, and the measured energy.
    """
    is_alive = overview.owner is not None
    history = build_history(events, alive=is_alive)
    until = now if is_alive else history.finished
    kept = sorted(history.kept.items())
    losses = values_of(kept, "loss")
    return PageContent(
        now=now,
        overview=overview,
        history=history,
        answer=explain_run(overview, budget, now),
        in_steps=step_time(history),
        cost=cost_of(
            overview.run.name,
            history,
            events,
            overview.spec,
            until,
            rates,
            overview.evaluations,
            now,
        ),
        loss=curve_of("loss", losses),
        smoothed=curve_of("loss", smooth(losses)),
        again=curve_of("loss", sorted(values_of(((e.step, e) for e in history.repeated), "loss"))),
        validation=curve_of("loss", values_of(sorted(history.validated.items()), "val_loss")),
        speed=speed_of(kept),
        rate=curve_of("learning rate", values_of(kept, "lr")),
        norm=curve_of("gradient norm", values_of(kept, "grad_norm")),
        evaluation=tuple(
            (name, curve_of(name, values))
            for name, values in metric_curves(overview.evaluations).items()
        ),
        saved=tuple(_saved(history.committed, left)),
        loader_totals=_loader_totals(kept, events),
        findings=tuple(_findings(events)),
        damage=damage,
        family=family or RunFamily(),
    )


def _saved(
    committed: Iterable[CheckpointCommitted], left: Iterable[CheckpointInfo] | None
) -> Iterator[SavedCheckpoint]:
    there = {info.id: info for info in left or ()}
    for event in committed:
        info = there.get(event.id or "")
        is_whole = info is not None and info.state in _KEPT
        yield SavedCheckpoint(
            step=event.step,
            id=event.id or "",
            time=event.time,
            seconds=event.seconds,
            bytes=event.bytes,
            new_bytes=event.new_bytes,
            stored_bytes=info.bytes if info is not None and is_whole else None,
            state="unknown" if left is None else _state(info),
        )


def _state(info: CheckpointInfo | None) -> str:
    return "removed" if info is None else _KEPT.get(info.state, "damaged")


def _loader_totals(
    kept: Sequence[tuple[int, StepLogged]], events: Iterable[Event]
) -> LoaderTotals | None:
    counts = ("data_hits", "data_misses", "data_bypasses", "data_errors")
    if not any(event.data_hits is not None for _, event in kept):
        return None
    series = (values_of(kept, name) for name in counts)
    hits, misses, bypasses, errors = (
        int(sum(n for _, n in one if math.isfinite(n))) for one in series
    )
    bound = [event for event in events if isinstance(event, DataBound)]
    last = f"{bound[-1].bound}: {bound[-1].diagnosis}" if bound else None
    return LoaderTotals(hits, misses, bypasses, errors, last)


def _findings(events: Iterable[Event]) -> Iterator[RunFinding]:
    for event in events:
        where = _where(event)
        match event:
            case NodeUnhealthy():
                text = "; ".join(event.problems)
                yield RunFinding(event.time, "unhealthy node", where, text)
            case DeepHealthProblemFound() if not event.is_excluded:
                yield RunFinding(event.time, "slow, not left out", where, event.what)
            case AlertUndelivered():
                text = f"{', '.join(event.alerts)}: {event.why}"
                yield RunFinding(event.time, "alert not sent", event.target, text)
            case NodeLost():
                text = "its agent was lost without a request to leave"
                yield RunFinding(event.time, "lost node", where, text)
            case AgentKilled():
                text = "its agent was killed and replaced; snapshots in the node's memory were kept"
                yield RunFinding(event.time, "killed agent", where, text)
            case WrongComputation():
                yield RunFinding(event.time, "wrong computation", where, event.what)
            case SpikeFound():
                yield RunFinding(event.time, "spike", where, describe_spike(event))
            case UpdateSkipped():
                yield RunFinding(event.time, "update left out", where, describe_skipped(event))
            case StragglerFound():
                text = f"{describe_straggler(event)}, from step {event.step:,} on"
                yield RunFinding(event.time, "straggler", where, text)
            case StragglerCost() if event.ranks:
                where = ", ".join(event.hosts)
                yield RunFinding(event.time, "straggler cost", where, describe_cost(event))
            case StragglerEvicted():
                where = ", ".join(event.hosts)
                yield RunFinding(event.time, "evicted node", where, describe_eviction(event))
            case StragglerEvictionResult():
                where = ", ".join(event.hosts)
                yield RunFinding(event.time, "eviction", where, describe_result(event))
            case HangExplained():
                on_hosts = ", ".join(event.hosts) or where
                yield RunFinding(event.time, "hang", on_hosts, describe_hang(event))
            case Degraded():
                yield RunFinding(event.time, "degraded", where, event.what)
            case ReplicasDiffer():
                text = f"at step {event.step:,}: {event.summary}"
                yield RunFinding(event.time, "replicas differ", where, text)


def _where(event: Event) -> str:
    """Return the node that an event of any kind is about, as far as it says so."""
    host, node = event.get("host"), event.get("node")
    return str(host) if host else "" if node is None else f"node {node}"
