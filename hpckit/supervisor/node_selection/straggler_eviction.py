"""Decides whether slow nodes are replaced, and whether that has paid (`elastic.evict_stragglers`).
Pure functions of the run's events.

A node is replaced if it was the slow one in all windows of traced steps for long enough, and if the
steps that are left become shorter by more than the restart costs. No node is replaced twice, and
none after a replacement that has not paid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from checkpointing.events import CheckpointCommitted
from hpckit.config.spec import ElasticSpec
from hpckit.events.schema import (
    Event,
    RunEnded,
    RunStarted,
    StepLogged,
    StragglerCost,
    StragglerEvicted,
    StragglerEvictionResult,
    TrainingStarted,
)
from hpckit.supervisor.node_selection.restart_cost import (
    NEWEST_RECORDS,
    newest_step_s,
    restart_cost,
    step_records,
)
from hpckit.text.quantities import count, span

FACTOR = 2.0
"""How many times the cost of the restart has to be saved, as both are estimates."""
WINDOWS = 2
"""Least number of windows in a row that have to name the same nodes."""
RECORDS = 10
"""Number of step records after a replacement, without the first, that are compared with those
before."""


class EvictionAnswer(StrEnum):
    """The kind of a decision."""

    NO_STRAGGLER = "no_straggler"
    """The newest window has no slow node."""
    UNPROVEN = "unproven"
    """The same nodes have not been slow for long enough."""
    MOVES = "moves"
    """Other nodes were slow before."""
    REPEATED = "repeated"
    """One of the nodes was replaced before, and is back."""
    UNPAID = "unpaid"
    """An earlier replacement has not paid, or it is not known yet whether it has."""
    LIMIT = "limit"
    """So many nodes were replaced that no more may be for a while."""
    ENDLESS = "endless"
    """The number of steps that are left is not known."""
    NO_NODE = "no_node"
    """There is no node to replace them."""
    TOO_LATE = "too_late"
    """The restart costs more than it saves."""
    EVICT = "evict"
    """The nodes are to be replaced."""


@dataclass(frozen=True)
class NodeSupply:
    """The nodes that can replace others."""

    names: Sequence[str]
    """Names of the nodes of the job by number."""
    spares: int
    """Number of healthy nodes of the job that take no part in the generation."""
    has_next_job: bool
    """Whether another job continues the run if this one ends."""


@dataclass(frozen=True)
class EvictionDecision:
    """Whether to replace slow nodes, and why."""

    answer: EvictionAnswer
    reason: str
    """The reason, as text for people."""
    event: StragglerEvicted | None = None
    """The event of the replacement, if there is to be one."""


class EvictionHistory:
    """The events of a run that decisions need, of which there are few, however long the run is."""

    def __init__(self, written: Iterable[Event]) -> None:
        self._kept: list[Event] = []
        self._first: list[Event] = []  # step records of the present attempt
        self._last: deque[Event] = deque(maxlen=NEWEST_RECORDS)
        for event in written:
            self.take(event)

    def take(self, event: Event) -> None:
        """Adds the next event of the run."""
        match event:
            case StepLogged():
                if len(self._first) <= RECORDS:
                    self._first.append(event)
                else:
                    self._last.append(event)
            case TrainingStarted() | RunStarted():
                self._kept = [*self.events(), event]
                self._first.clear()
                self._last.clear()
            case (
                RunEnded()
                | CheckpointCommitted()
                | StragglerCost()
                | StragglerEvicted()
                | StragglerEvictionResult()
            ):
                if isinstance(event, CheckpointCommitted):  # only the newest is needed
                    self._kept = [e for e in self._kept if not isinstance(e, CheckpointCommitted)]
                self._kept.append(event)

    @property
    def has_unjudged(self) -> bool:
        """Whether it is not known yet if the newest replacement has paid."""
        kinds = StragglerEvicted | StragglerEvictionResult
        newest = next((event for event in reversed(self._kept) if isinstance(event, kinds)), None)
        return isinstance(newest, StragglerEvicted)

    def events(self) -> list[Event]:
        """Returns the events in the order of time."""
        return sorted([*self._kept, *self._first, *self._last], key=lambda event: event.time)


def decide_eviction(
    events: Sequence[Event], elastic: ElasticSpec, supply: NodeSupply, now: float
) -> EvictionDecision:
    """Returns whether to replace the slow nodes of the newest window of traced steps.

    Args:
        events: of the run, in the order of time.
        now: seconds since the epoch.
    """
    attempt = _present_attempt(events)
    windows = [event for event in attempt if isinstance(event, StragglerCost)]
    if not windows or not windows[-1].nodes:
        return EvictionDecision(EvictionAnswer.NO_STRAGGLER, "no node is slow")
    nodes = windows[-1].nodes
    names = [supply.names[node] for node in nodes]
    who = " and ".join(names)
    if (early := _unproven(windows, supply.names, 60 * elastic.evict_evidence_minutes)) is not None:
        return early
    proof = _proof(windows, 60 * elastic.evict_evidence_minutes)
    if (flap := _flaps(events, names, elastic, now)) is not None:
        return flap
    step_s, left = newest_step_s(attempt) or windows[-1].step_s, _steps_left(events)
    if left is None:
        what = f"{who}: the number of steps that are left is not known"
        return EvictionDecision(EvictionAnswer.ENDLESS, what)
    by = "spare" if supply.spares >= len(nodes) else "job"
    if by == "job" and not (elastic.evict_stragglers == "job" and supply.has_next_job):
        what = f"{who}: {count(supply.spares, 'spare node')} ready for {count(len(nodes), 'node')}"
        return EvictionDecision(EvictionAnswer.NO_NODE, what)
    share = min(one.share for one in proof)
    cost = restart_cost(events, in_queue=by == "job")
    saved_s = share * step_s * left
    what = (
        f"{who} costs {share:.1%} of each step, by {count(len(proof), 'window')} in a row; without "
        f"it the remaining {count(left, 'step')} take {span(saved_s)} less, and a restart takes "
        f"{span(cost.seconds)} ({cost.source})"
    )
    if saved_s <= FACTOR * cost.seconds:
        return EvictionDecision(
            EvictionAnswer.TOO_LATE, f"{what}; it has to save {FACTOR:g} times that"
        )
    newest = windows[-1]
    event = StragglerEvicted(
        generation=newest.generation or 0,
        step=newest.step,
        nodes=list(nodes),
        hosts=names,
        ranks=list(newest.ranks),
        share=share,
        step_s=step_s,
        restart_s=cost.seconds,
        by=by,
        reason=what,
    )
    return EvictionDecision(EvictionAnswer.EVICT, what, event)


def eviction_result(events: Sequence[Event]) -> StragglerEvictionResult | None:
    """Returns whether the newest replacement has paid; None if there is none to judge, or not yet.

    Args:
        events: of the run, in the order of time.
    """
    evicted = _last_eviction(events)
    if evicted is None or _result_of(events, evicted) is not None:
        return None
    at = events.index(evicted)
    before = step_records(_present_attempt(events[:at]))
    later = events[at:]
    started = next((i for i, e in enumerate(later) if isinstance(e, TrainingStarted)), None)
    if started is None:
        return None
    after = step_records(later[started:])
    if not before or len(after) <= RECORDS:
        return None
    # the records until the ranks left are of the time before, too
    before_s = median(one.step_s for one in before[-NEWEST_RECORDS:])
    after_s = median(one.step_s for one in after[1 : RECORDS + 1])
    last = max((e.time for e in step_records(later[:started])), default=before[-1].time)
    begun = later[started]
    assert isinstance(begun, TrainingStarted)
    restart_s = max(0.0, after[0].time - last - (after[0].step - begun.step) * after_s)
    left = _steps_left(events[: at + 1]) or 0
    saved_s = (before_s - after_s) * left - restart_s
    return StragglerEvictionResult(
        step=after[RECORDS].step,
        hosts=list(evicted.hosts),
        before_s=before_s,
        after_s=after_s,
        restart_s=restart_s,
        saved_s=saved_s,
        has_paid=saved_s > 0,
    )


def _unproven(
    windows: Sequence[StragglerCost], names: Sequence[str], evidence_s: float
) -> EvictionDecision | None:
    """Returns why the newest slow nodes are not proven to be the cause, or None."""
    proof, newest = _proof(windows, evidence_s), windows[-1]
    who = " and ".join(names[node] for node in newest.nodes)
    seconds = sum(one.seconds for one in proof)
    same = [one for one in proof if set(one.nodes) == set(newest.nodes)]
    others = {node for one in proof for node in one.nodes} - set(newest.nodes)
    if others:
        before = " and ".join(names[node] for node in sorted(others))
        what = f"{before} was slow before {who}, so it is not the fault of a node"
        return EvictionDecision(EvictionAnswer.MOVES, what)
    if seconds < evidence_s or len(proof) < WINDOWS or len(same) < len(proof):
        slow_s = sum(one.seconds for one in same)
        what = (
            f"{who} was slow for {span(slow_s)} in {count(len(same), 'window')} of the last "
            f"{span(max(seconds, evidence_s))}"
        )
        return EvictionDecision(EvictionAnswer.UNPROVEN, what)
    return None


def _proof(windows: Sequence[StragglerCost], evidence_s: float) -> list[StragglerCost]:
    """Returns the newest windows that are enough to prove something, or all."""
    proof: list[StragglerCost] = []
    for one in reversed(windows):
        if len(proof) >= WINDOWS and sum(w.seconds for w in proof) >= evidence_s:
            break
        proof.append(one)
    return proof


def _flaps(
    events: Sequence[Event], names: Sequence[str], elastic: ElasticSpec, now: float
) -> EvictionDecision | None:
    """Returns why earlier replacements forbid another one, or None."""
    earlier = [event for event in events if isinstance(event, StragglerEvicted)]
    if again := sorted({host for event in earlier for host in event.hosts} & set(names)):
        what = f"{' and '.join(again)} was replaced before and is slow again"
        return EvictionDecision(EvictionAnswer.REPEATED, what)
    if (last := _last_eviction(events)) is not None:
        result = _result_of(events, last)
        if result is None or not result.has_paid:
            known = "is not known to have paid yet" if result is None else "has not paid"
            what = f"the eviction of {' and '.join(last.hosts)} {known}"
            return EvictionDecision(EvictionAnswer.UNPAID, what)
    hours = elastic.evict_within_hours
    recent = sum(len(one.nodes) for one in earlier if now - one.time < 3600 * hours)
    if recent + len(names) > elastic.evict_most:
        what = f"{count(recent, 'node')} replaced within {hours:g} hours (elastic.evict_most)"
        return EvictionDecision(EvictionAnswer.LIMIT, what)
    return None


def _last_eviction(events: Sequence[Event]) -> StragglerEvicted | None:
    return next((e for e in reversed(events) if isinstance(e, StragglerEvicted)), None)


def _result_of(
    events: Sequence[Event], evicted: StragglerEvicted
) -> StragglerEvictionResult | None:
    later = events[events.index(evicted) :]
    return next((e for e in later if isinstance(e, StragglerEvictionResult)), None)


def _present_attempt(events: Sequence[Event]) -> Sequence[Event]:
    """Returns the events since training began last."""
    for at in range(len(events) - 1, -1, -1):
        if isinstance(events[at], TrainingStarted | RunStarted):
            return events[at:]
    return events


def _steps_left(events: Sequence[Event]) -> int | None:
    steps = next((e.steps for e in reversed(events) if isinstance(e, RunStarted)), None)
    kinds = StepLogged | TrainingStarted
    reached = next((e.step for e in reversed(events) if isinstance(e, kinds)), 0)
    return None if steps is None else max(0, steps - reached)
