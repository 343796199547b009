"""The node-hours of a run by cause. Pure.

The time for which jobs held their nodes is divided without a rest. Time that a job spends in steps
is divided further by their records, and a step that was repeated later counts as lost to the
interruption after which it was repeated.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpckit.events.schema import (
    Event,
    RunEnded,
    RunFailed,
    RunStarted,
    SpikeFound,
    StepLogged,
    StragglerCost,
    StragglerFound,
    StragglerOver,
    TrainingStarted,
    WorkerStarted,
)
from hpckit.report.evaluation.evaluation_records import EvaluationRecord
from hpckit.report.history import History, TrainingAttempt

TRAINED = "trained"
STALL = "checkpoint stall"
CHECKS = "checks of computations"
DATA = "waiting for data"
STRAGGLERS = "stragglers"
VALIDATION = "validation"
BETWEEN = "between steps"
START = "start-up"
END = "end: last save and exit"
SKIPPED = "skipped updates"
SPARES = "idle nodes"
EVALUATION = "evaluation"
UNREPORTED = "running: no step was reported"
LOST = "lost: "
"""The begin of the causes that are interruptions, such as "lost: preempted"."""
SPIKE = "spike"


@dataclass(frozen=True)
class HeldNodes:
    """The time for which a job, or a process without a job, has held nodes."""

    begun: float
    ended: float
    """Seconds since the epoch."""
    nodes: int

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


def held_nodes(events: Sequence[Event], nodes: int, until: float) -> list[HeldNodes]:
    """Return the times for which supervisors of the run have held nodes.

    A supervisor that was killed has held them until its last event at least, and nothing more is
    known of it here.

    Args:
        events: of the run, in the order of time.
        nodes: the nodes of a supervisor that does not say how many it has.
        until: when the supervisor that has not ended is seen to run, in seconds since the epoch; of
            a run that is over, the time of its last event.
    """
    found: list[HeldNodes] = []
    begun, count, last = None, nodes, 0.0
    for event in events:
        if isinstance(event, RunStarted):
            if begun is not None:  # it was killed
                found.append(HeldNodes(begun, max(begun, last), count))
            begun = event.time
            count = len(event.hosts) if event.hosts else nodes
        elif begun is not None and isinstance(event, RunEnded | RunFailed):
            found.append(HeldNodes(begun, max(begun, event.time), count))
            begun = None
        last = event.time
    if begun is not None:
        found.append(HeldNodes(begun, max(begun, until), count))
    return found


def node_seconds(
    history: History,
    events: Sequence[Event],
    held: Sequence[HeldNodes],
    *,
    is_program: bool = False,
) -> dict[str, float]:
    """Return node-seconds by cause, the largest first. Their sum is that of the seconds of `held`
    times its nodes.

    Args:
        history: the history of the run.
        events: of the run, in the order of time.
        is_program: whether its steps may be unknown, as a program need not report any.
    """
    found: defaultdict[str, float] = defaultdict(float)
    segments = list(_segments(history, events))
    if is_program and not segments:
        segments = list(_unreported(events))
    for job in held:
        left_s = job.seconds
        for segment in segments:
            seconds = min(segment.ended, job.ended) - max(segment.begun, job.begun)
            if seconds <= 0:
                continue
            left_s -= seconds
            used = min(job.nodes, segment.nodes or job.nodes)
            for cause, share in segment.shares.items():
                found[cause] += seconds * used * share
            found[SPARES] += seconds * (job.nodes - used)
        found[START] += max(0.0, left_s) * job.nodes
    by_size = sorted(found.items(), key=lambda item: -item[1])
    return {cause: seconds for cause, seconds in by_size if seconds > 0}


def evaluation_seconds(
    evaluations: Iterable[EvaluationRecord],
    held: Sequence[HeldNodes],
    until: float,
    *,
    is_own_node: bool,
) -> float:
    """Return the node-seconds of evaluations, each of which has one node.

    A start without an end, of one that was killed, does not count, as it is not known how long it
    has run.

    Args:
        held: when the run has held its nodes.
        until: up to when one that runs now counts, in seconds since the epoch.
        is_own_node: whether evaluations have nodes of their own; if not, they share that of the
            run, and count only while the run does not hold it.
    """
    seconds = 0.0
    for evaluation in evaluations:
        for number, (start, end) in enumerate(evaluation.attempts, 1):
            is_now = evaluation.is_running and number == len(evaluation.attempts)
            if end is None and not is_now:
                continue
            ended = max(start.time, until if end is None else start.time + end.seconds)
            shared = () if is_own_node else held
            overlaps = (min(ended, h.ended) - max(start.time, h.begun) for h in shared)
            seconds += ended - start.time - sum(max(0.0, overlap) for overlap in overlaps)
    return seconds


def queued_seconds(held: Sequence[HeldNodes]) -> float:
    """Return the seconds between jobs, in which the run waited in the queue or for a person."""
    return sum(max(0.0, after.begun - before.ended) for before, after in pairwise(held))


@dataclass(frozen=True)
class _Segment:
    """A period in which the shares of the causes do not change."""

    begun: float
    ended: float
    shares: dict[str, float]
    """Shares of the time by cause, which sum to 1."""
    nodes: int = 0
    """The number of nodes that take part; 0: all that the job has."""


def _segments(history: History, events: Sequence[Event]) -> Iterator[_Segment]:
    """Yield segments that cover all time, in order and without an overlap."""
    lives, slow = history.lives, _straggler_times(events)
    records = _records(history)
    if not lives:
        return
    reached = lives[0].started
    yield _Segment(-math.inf, reached, {START: 1.0})
    for life, following in zip(lives, [*lives[1:], None], strict=True):
        own = records.get((life.generation, life.attempt), [])
        cause = END if following is None else LOST + _end_of(life, following, events)
        last = max([reached, *(record.event.time for record in own)])
        if last > reached:
            yield _Segment(reached, last, _shares(own, last - reached, cause, slow), life.nodes)
        reached = math.inf if following is None else max(last, following.started)
        yield _Segment(last, reached, {cause: 1.0})


def _unreported(events: Iterable[Event]) -> Iterator[_Segment]:
    """Yield segments of a run of which no step is known, from the start of its first worker on."""
    begun = next((event.time for event in events if isinstance(event, WorkerStarted)), None)
    if begun is not None:
        yield _Segment(-math.inf, begun, {START: 1.0})
        yield _Segment(begun, math.inf, {UNREPORTED: 1.0})


def _end_of(life: TrainingAttempt, following: TrainingAttempt, events: Iterable[Event]) -> str:
    """Return what an attempt was interrupted by."""
    during = (event for event in events if life.started <= event.time <= following.started)
    return SPIKE if any(isinstance(event, SpikeFound) for event in during) else life.end


@dataclass(frozen=True)
class _Record:
    """A step record and the steps since the one before it."""

    event: StepLogged
    steps: int
    is_kept: bool
    skipped: int
    """Number of these steps whose update was left out."""

    @property
    def seconds(self) -> float:
        return self.steps * self.event.step_s


def _records(history: History) -> dict[tuple[int, int], list[_Record]]:
    """Return the records of each attempt, by (generation, attempt)."""
    begins = {(life.generation, life.attempt): life.start_step for life in history.lives}
    found: dict[tuple[int, int], list[_Record]] = {}
    without = sorted(event.step for event in history.skipped_updates)
    every = [(event, True) for event in history.kept.values()]
    every += [(event, False) for event in history.repeated]
    for event, is_kept in sorted(every, key=lambda pair: (pair[0].step, pair[0].time)):
        key = (event.generation, event.attempt or 0)
        own = found.setdefault(key, [])
        before = own[-1].event.step if own else begins.get(key, event.step)
        skipped = bisect(without, event.step) - bisect(without, before) if is_kept else 0
        own.append(_Record(event, max(0, event.step - before), is_kept, skipped))
    return found


def _shares(
    own: Sequence[_Record], whole_s: float, cause: str, slow: Sequence[tuple[float, float, float]]
) -> dict[str, float]:
    """Return the share of each cause in the time of an attempt's steps; time that no record covers
    counts as time between steps."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for record in own:
        if not record.is_kept:
            seconds[cause] += record.seconds
            continue
        parts = {
            STALL: record.steps * (record.event.checkpoint_stall_s or 0.0),
            CHECKS: record.steps * (record.event.certification_s or 0.0),
            DATA: record.steps * (record.event.data_wait_s or 0.0),
            VALIDATION: record.steps * (record.event.validation_s or 0.0),
        }
        rest = max(0.0, record.seconds - sum(parts.values()))
        parts[SKIPPED] = rest * record.skipped / max(1, record.steps)
        rest -= parts[SKIPPED]
        parts[STRAGGLERS] = rest * _slow_share(record.event.time, slow)
        parts[TRAINED] = rest - parts[STRAGGLERS]
        for name, part in parts.items():
            seconds[name] += part
    known_s = sum(seconds.values())
    seconds[BETWEEN] += max(0.0, whole_s - known_s)
    whole_s = max(whole_s, known_s)
    return {name: part / whole_s for name, part in seconds.items()}


def _straggler_times(events: Iterable[Event]) -> list[tuple[float, float, float]]:
    """Return when ranks were stragglers, and what they cost, as a share of the step.

    Windows of traced steps have measured it, and the newest one holds until the next attempt. For
    times before the first one, it is estimated from how much longer a straggler works than others.
    """
    events = list(events)
    found: list[tuple[float, float, float]] = []
    ended = math.inf
    for event in reversed(events):
        if isinstance(event, StragglerCost):
            begun = event.time - event.seconds
            found.insert(0, (begun, ended, event.share))
            ended = begun
        elif isinstance(event, TrainingStarted | RunStarted):
            ended = event.time
    windows = [(begun, ended) for begun, ended, _ in found]
    for begun, ended, share in _estimated_straggler_times(events):
        found += [(*part, share) for part in _without(begun, ended, windows)]
    return found


def _without(
    begun: float, ended: float, covered: Iterable[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the parts of a time that are not covered by these ordered times."""
    left = []
    for from_, until in covered:
        if until <= begun or from_ >= ended:
            continue
        if from_ > begun:
            left.append((begun, from_))
        begun = max(begun, until)
    return [*left, (begun, ended)] if begun < ended else left


def _estimated_straggler_times(events: Iterable[Event]) -> list[tuple[float, float, float]]:
    found, open_ = [], dict[int, StragglerFound]()
    for event in events:
        if isinstance(event, StragglerFound):
            open_.setdefault(event.rank, event)
        elif isinstance(event, StragglerOver | RunStarted | TrainingStarted):
            ended = [event.rank] if isinstance(event, StragglerOver) else list(open_)
            for rank in ended:
                if rank in open_:
                    one = open_.pop(rank)
                    found.append((one.time, event.time, one.excess / (1 + one.excess)))
    found += [(e.time, math.inf, e.excess / (1 + e.excess)) for e in open_.values()]
    return found


def _slow_share(time: float, slow: Iterable[tuple[float, float, float]]) -> float:
    """Return the share of a step at this time that the slowest straggler has cost."""
    return max((share for begun, ended, share in slow if begun < time <= ended), default=0.0)
