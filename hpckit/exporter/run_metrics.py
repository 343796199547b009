"""Metrics of a run, updated event by event, as a run may have more events than fit in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from checkpointing.events import CheckpointCommitted, CheckpointFailed
from hpckit.events.schema import (
    Degraded,
    Event,
    GenerationEnded,
    GenerationStarted,
    RunEnded,
    RunFailed,
    RunStarted,
    StepLogged,
    StragglerCost,
    TrackerUndelivered,
    TrainingStarted,
)
from hpckit.exporter.exposition import MetricSample
from hpckit.report.interruptions import interruptions

_RECORD_METRICS = {
    "hpckit_loss": "loss",
    "hpckit_step_seconds": "step_s",
    "hpckit_data_wait_seconds": "data_wait_s",
    "hpckit_checkpoint_stall_seconds": "checkpoint_stall_s",
    "hpckit_tokens_per_second": "tokens_per_s",
    "hpckit_samples_per_second": "samples_per_s",
    "hpckit_mfu_ratio": "mfu",
}
_STRAGGLER_METRICS = {
    "hpckit_straggler_loss_ratio": "share",
    "hpckit_rank_spread_loss_ratio": "spread",
}
_SAVE_METRICS = {
    "hpckit_checkpoint_step": "step",
    "hpckit_checkpoint_bytes": "bytes",
    "hpckit_checkpoint_new_bytes": "new_bytes",
}
_Boundary = GenerationEnded | RunStarted | RunEnded | RunFailed | TrainingStarted
_UNKNOWN_SUBJECT = "unknown"


class RunMetrics:
    """The metrics of one run."""

    def __init__(self) -> None:
        self._newest: dict[type[Event], Event] = {}
        self._boundaries: list[Event] = []
        self._step: int | None = None
        self._started_s: float | None = None
        self._failures = 0
        self._undelivered: Counter[str] = Counter()
        self._degraded: Counter[str] = Counter()

    def take(self, event: Event) -> None:
        """Updates the metrics with the next event. Missing fields of a damaged event are
        ignored."""
        self._newest[type(event)] = event
        is_complete = not isinstance(event, GenerationEnded) or event.get("verdict")
        if isinstance(event, _Boundary) and is_complete:
            self._boundaries.append(event)
        match event:
            case StepLogged():
                self._step = _number(event.get("step"), self._step)
            case TrainingStarted():
                self._step = _number(event.get("step"), self._step)  # it may have decreased
                self._started_s = event.time
            case CheckpointFailed():
                self._failures += 1
            case Degraded():
                self._degraded[str(event.subject or _UNKNOWN_SUBJECT)] += 1
            case TrackerUndelivered():
                tracker = str(event.get("tracker"))
                self._undelivered[tracker] += _number(event.get("records"), 0)

    def samples(self, run: str, now_s: float) -> Iterator[MetricSample]:
        """Yields the known metrics; `now_s` is in seconds since the epoch."""
        yield from self._run_samples(run)
        yield from self._record_samples(run)
        yield from self._save_samples(run, now_s)
        yield from self._straggler_samples(run)
        for kind, count in interruptions(self._boundaries).items():
            yield MetricSample("hpckit_restarts_total", (run, kind), count)
        for tracker, count in self._undelivered.items():
            yield MetricSample("hpckit_tracker_undelivered_total", (run, tracker), count)
        for subject, count in self._degraded.items():
            yield MetricSample("hpckit_degradations_total", (run, subject), count)

    def _run_samples(self, run: str) -> Iterator[MetricSample]:
        if self._step is not None:
            yield MetricSample("hpckit_step", (run,), self._step)
        yield from self._fields(run, RunStarted, {"hpckit_steps": "steps"})
        about = {"hpckit_generation": "generation", "hpckit_nodes": "nodes"}
        yield from self._fields(run, GenerationStarted, about)
        yield from self._fields(run, TrainingStarted, {"hpckit_ranks": "world_size"})

    def _record_samples(self, run: str) -> Iterator[MetricSample]:
        if record := self._newest.get(StepLogged):
            yield MetricSample("hpckit_record_timestamp_seconds", (run,), record.time)
            yield from self._fields(run, StepLogged, _RECORD_METRICS)

    def _straggler_samples(self, run: str) -> Iterator[MetricSample]:
        cost, started = self._newest.get(StragglerCost), self._newest.get(TrainingStarted)
        if cost is None or (started is not None and started.time > cost.time):
            return  # of an attempt that is over
        yield from self._fields(run, StragglerCost, _STRAGGLER_METRICS)
        named = zip(
            *(cost.get(name) or () for name in ("hosts", "ranks", "phases", "excesses")),
            strict=False,
        )
        for host, rank, phase, excess in named:
            labels = (run, str(host), str(rank), str(phase))
            if _number(excess, None) is not None:
                yield MetricSample("hpckit_straggler_excess_ratio", labels, excess)

    def _save_samples(self, run: str, now_s: float) -> Iterator[MetricSample]:
        yield MetricSample("hpckit_checkpoint_failures_total", (run,), self._failures)
        yield from self._fields(run, CheckpointCommitted, _SAVE_METRICS)
        saved = self._newest.get(CheckpointCommitted)
        at = _number(saved.get("step"), 0) if saved else 0
        since_s = saved.time if saved else self._started_s
        if self._step is not None and since_s is not None:
            yield MetricSample("hpckit_checkpoint_lag_steps", (run,), max(0, self._step - at))
            yield MetricSample("hpckit_checkpoint_lag_seconds", (run,), max(0.0, now_s - since_s))

    def _fields(self, run: str, kind: type[Event], names: dict[str, str]) -> Iterator[MetricSample]:
        event = self._newest.get(kind)
        for name, key in names.items():
            if (value := _number(event.get(key) if event else None, None)) is not None:
                yield MetricSample(name, (run,), value)


def _number(value: Any, other: Any) -> Any:
    """Returns `value`, or `other` if it is not a number."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else other
