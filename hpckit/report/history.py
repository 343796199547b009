"""The history of a run from its events: its attempts, what each cost, and the kept steps.

The span of an attempt is from the moment when its ranks train to the last step that they finished.
Pure: takes a list of events, returns plain data.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from checkpointing.events import CheckpointCommitted, CheckpointStarted
from data.order.batch_ramp import BatchRamp
from data.order.skipped_ranges import SkippedRanges
from hpckit.config.rules.validation_and_evaluation import PREFIX
from hpckit.events.schema import (
    CheckpointReported,
    DatasetGrown,
    Event,
    GenerationEnded,
    GenerationStarted,
    HangExplained,
    MixtureChanged,
    RunEnded,
    RunStarted,
    SpikeFound,
    StepLogged,
    StragglerCost,
    StragglerEvicted,
    StragglerEvictionResult,
    StragglerFound,
    TrainingStarted,
    UpdateSkipped,
    Validated,
    WorkerLost,
)
from hpckit.events.skipped_updates import skipped_updates
from hpckit.report.source_progress import newest_sources
from hpckit.report.straggler_summary import summary_of

_OF_SKIPPED = ("step", "what", "first_position", "end_position")


@dataclass(frozen=True)
class TrainingAttempt:
    """One attempt of one generation."""

    generation: int
    attempt: int
    world_size: int
    nodes: int
    start_step: int
    """Number of steps finished when it began."""
    end_step: int
    """Number of steps finished when it ended."""
    started: float
    ended: float | None
    """Seconds since the epoch; None while it lasts, or if no process was left to record it."""
    end: str
    """Why it ended: a verdict, `worker lost`, `killed`, or `running`."""
    reason: str
    position: int | None
    """Number of samples that all steps before it took, or the loader's cursor if documents are
    packed; None: recorded by a version whose batches all had one size."""
    global_batch: int | None
    """Number of samples of each of its steps; None: as above."""
    restore_s: float
    """Seconds that its ranks took to restore their state, before it began."""
    batch_ramp: tuple[int, ...] | None = None
    """The start, increment, samples and full size of a batch that grows; None: it does not."""
    seen: int | None = None
    """Number of samples, or of sequences of packed documents, of all steps before it, if known."""

    def samples_after(self, steps: int) -> tuple[int, int]:
        """Return the samples of its first `steps` steps, and of the one after them. Its
        `global_batch` has to be known."""
        assert self.global_batch is not None
        if self.batch_ramp is None or self.seen is None:
            return steps * self.global_batch, self.global_batch
        ramp = BatchRamp(*self.batch_ramp)
        after = ramp.after(self.seen, steps)
        return after - self.seen, ramp.size_at(after)


@dataclass(frozen=True)
class Interruption:
    """The time between two attempts."""

    at_step: int
    resumed_step: int
    end: str
    leave_s: float
    """Seconds from the last finished step to the end of the generation: detection, save, exit."""
    restart_s: float
    """Seconds from there until all ranks train again: processes, rendezvous, restore."""
    repeat_s: float
    """Seconds from there to the first new step, less the duration of a step: repeated steps."""

    @property
    def repeated(self) -> int:
        return max(0, self.at_step - self.resumed_step)

    @property
    def lost_s(self) -> float:
        return self.leave_s + self.restart_s + self.repeat_s


@dataclass(frozen=True)
class History:
    """The history of a run, without its samples."""

    steps: int | None
    """Number of steps that the run is to have."""
    lives: tuple[TrainingAttempt, ...]
    interruptions: tuple[Interruption, ...]
    kept: dict[int, StepLogged]
    """The record of each kept step that was logged, from the last attempt that did the step."""
    repeated: tuple[StepLogged, ...]
    """Records of steps that do not count: repeated later, or lost."""
    validated: dict[int, Validated]
    """The newest results of validation by step."""
    committed: tuple[CheckpointCommitted, ...]
    """Events of committed checkpoints."""
    reported: tuple[CheckpointReported, ...]
    """Events of checkpoints that a program has saved itself."""
    spikes: tuple[SpikeFound, ...]
    """Events of spikes."""
    skipped_updates: tuple[UpdateSkipped, ...]
    """Events of the steps whose update was left out."""
    slow_ranks: tuple[StragglerFound, ...]
    """Events of stragglers, one for each time that a rank became one."""
    straggler_costs: tuple[StragglerCost, ...]
    """What each window of traced steps has shown of stragglers."""
    evictions: tuple[StragglerEvicted, ...]
    """Events of slow nodes that were replaced."""
    eviction_results: tuple[StragglerEvictionResult, ...]
    """Whether that has paid."""
    sources: dict[str, dict[str, Any]]
    """The newest progress of each source of a mixture, as of the event `mixture`."""
    dataset_growths: tuple[DatasetGrown, ...]
    """Events of datasets that had more shards when the run resumed."""
    mixture_changes: tuple[MixtureChanged, ...]
    """Events of changed weights of a mixture."""
    hangs: tuple[HangExplained, ...]
    """Events of hangs, with what they came from."""
    samples: int | None
    """Number of samples of the dataset; None: documents were packed, and not counted by step."""
    loader: str | None
    """The class of the loader, with its module, if it is of another library."""
    started: float
    finished: float
    """Seconds since the epoch of the last event; `started` is that of the first."""

    @property
    def steps_kept(self) -> int:
        """Number of kept steps of the run."""
        return self.lives[-1].end_step if self.lives else 0

    @property
    def step_s(self) -> float:
        """Median duration of a step in seconds; 0 if none was logged."""
        return median([float(event.step_s) for event in self.kept.values()] or [0.0])

    @property
    def left_out(self) -> SkippedRanges:
        """The positions of the samples that the run leaves out since its spikes."""
        spikes = (one for one in self.spikes if one.is_left_out)
        return SkippedRanges((one.first_position, one.end_position) for one in spikes)

    def record(self) -> dict[str, Any]:
        """Return the history as JSON values; times are seconds since the epoch."""
        costs = summary_of(self.straggler_costs)
        return {
            "steps": self.steps,
            "steps_kept": self.steps_kept,
            "step_s": self.step_s,
            "started": self.started,
            "finished": self.finished,
            "lives": [asdict(life) for life in self.lives],
            "interruptions": [
                {**asdict(gap), "repeated": gap.repeated, "lost_s": gap.lost_s}
                for gap in self.interruptions
            ],
            "spikes": [
                {name: event[name] for name in ("first_step", "step", "what", "is_left_out")}
                for event in self.spikes
            ],
            "skipped_updates": [
                {name: event.get(name) for name in _OF_SKIPPED} for event in self.skipped_updates
            ],
            "stragglers": [
                {name: event[name] for name in ("rank", "host", "step", "z", "excess")}
                for event in self.slow_ranks
            ],
            "straggler_cost": None if costs is None else costs.record(),
            "evictions": [
                {name: event[name] for name in ("step", "hosts", "ranks", "share", "by", "reason")}
                for event in self.evictions
            ],
            "eviction_results": [event.fields for event in self.eviction_results],
            "hangs": [
                {name: event[name] for name in ("step", "cause", "culprits", "hosts", "text")}
                for event in self.hangs
            ],
            "sources": self.sources,
            "dataset_growths": [event.fields for event in self.dataset_growths],
            "mixture_changes": [event.fields for event in self.mixture_changes],
            "checkpoints": [event.step for event in self.committed],
            "validated": [
                {name: found for name, found in event.fields.items() if _is_of_validation(name)}
                for _, event in sorted(self.validated.items())
            ],
            "samples": self.samples,
        }


def names_of(lives: Sequence[TrainingAttempt]) -> list[str]:
    """Return a label for each attempt: its generation, or "2.1" after one restart in place."""
    seen: Counter[int] = Counter()
    names = []
    for life in lives:
        again = seen[life.generation]
        names.append(f"{life.generation}.{again}" if again else str(life.generation))
        seen[life.generation] += 1
    return names


def build_history(events: Sequence[Event], alive: bool = False) -> History:
    """Build the history from `events` in the order of time; `alive`: the run is not over."""
    lives = _attempts(events)
    if lives and lives[-1].end == "running" and not alive:
        lives = (*lives[:-1], replace(lives[-1], end="killed"))
    records = [event for event in events if isinstance(event, StepLogged)]
    reached = lives[-1].end_step if lives else 0
    kept = {event.step: event for event in records if event.step <= reached}
    started = [event for event in events if isinstance(event, TrainingStarted)]
    history = History(
        steps=next((e.steps for e in reversed(events) if isinstance(e, RunStarted)), None),
        lives=lives,
        interruptions=(),
        kept=kept,
        repeated=tuple(event for event in records if kept.get(event.step) is not event),
        validated={
            event.step: event
            for event in events
            if isinstance(event, Validated) and event.step <= reached
        },
        committed=tuple(event for event in events if isinstance(event, CheckpointCommitted)),
        reported=tuple(event for event in events if isinstance(event, CheckpointReported)),
        spikes=tuple(event for event in events if isinstance(event, SpikeFound)),
        skipped_updates=tuple(skipped_updates(events).values()),
        slow_ranks=tuple(event for event in events if isinstance(event, StragglerFound)),
        straggler_costs=tuple(event for event in events if isinstance(event, StragglerCost)),
        evictions=tuple(event for event in events if isinstance(event, StragglerEvicted)),
        eviction_results=tuple(
            event for event in events if isinstance(event, StragglerEvictionResult)
        ),
        sources=newest_sources(events, reached),
        dataset_growths=tuple(event for event in events if isinstance(event, DatasetGrown)),
        mixture_changes=tuple(event for event in events if isinstance(event, MixtureChanged)),
        hangs=tuple(event for event in events if isinstance(event, HangExplained)),
        samples=started[-1].samples if started else None,
        loader=started[-1].loader if started else None,
        started=events[0].time if events else 0.0,
        finished=events[-1].time if events else 0.0,
    )
    return replace(history, interruptions=_interruptions(lives, records, history.step_s))


def _is_of_validation(name: str) -> bool:
    return name in ("step", "seconds") or name.startswith(PREFIX)


def _attempts(events: Sequence[Event]) -> tuple[TrainingAttempt, ...]:
    starts = [i for i, event in enumerate(events) if isinstance(event, TrainingStarted)]
    return tuple(_attempt_at(events, i, end) for i, end in pairwise([*starts, len(events)]))


def _attempt_at(events: Sequence[Event], start: int, end: int) -> TrainingAttempt:
    """Return the attempt that begins with `events[start]`; the next one, if any, begins at
    `end`."""
    first, during = events[start], events[start + 1 : end]
    assert isinstance(first, TrainingStarted)
    generation = first.generation
    nodes = next(
        (
            event.nodes
            for event in reversed(events[:start])
            if isinstance(event, GenerationStarted) and event.generation == generation
        ),
        0,
    )
    ended, why, reason = _end_of(generation, during, is_last=end == len(events))
    steps = [first.step]
    for event in during:
        is_end = isinstance(event, GenerationEnded) and event.generation == generation
        if is_end or isinstance(event, StepLogged | CheckpointStarted | WorkerLost):
            steps.append(event["step"])
    return TrainingAttempt(
        generation=generation,
        attempt=first.attempt or 0,
        world_size=first.world_size,
        nodes=nodes,
        start_step=first.step,
        end_step=max(steps),
        started=first.time,
        ended=ended,
        end=why,
        reason=reason,
        position=first.position,
        global_batch=first.global_batch,
        restore_s=first.restore_s or 0.0,
        batch_ramp=None if first.batch_ramp is None else tuple(first.batch_ramp),
        seen=first.seen,
    )


def _end_of(
    generation: int, during: Sequence[Event], is_last: bool
) -> tuple[float | None, str, str]:
    for event in during:
        if isinstance(event, GenerationEnded) and event.generation == generation:
            return event.time, event.verdict, event.reason
    for event in during:
        if isinstance(event, WorkerLost):
            return event.time, "worker lost", "restarted in place"
    if any(isinstance(event, RunStarted) for event in during):
        return None, "killed", "the supervisor was killed and another one started"
    if is_last and not any(isinstance(event, RunEnded) for event in during):
        return None, "running", ""
    return None, "failed", "restarted in place"


def _interruptions(
    lives: Sequence[TrainingAttempt], records: Sequence[StepLogged], step_s: float
) -> tuple[Interruption, ...]:
    found = []
    by_life: dict[tuple[int, int], list[StepLogged]] = defaultdict(list)
    for event in records:
        by_life[event.generation, event.attempt or 0].append(event)
    reached = 0
    for before, after in pairwise(lives):
        reached = max(reached, before.end_step)
        own = by_life[after.generation, after.attempt]
        last = _time_of_last_step(by_life[before.generation, before.attempt], before)
        ended = before.ended if before.ended is not None else last
        fresh = [event.time for event in own if event.step > reached]
        # if an attempt reaches no new step, all of it up to its last step was lost
        progress = min(fresh) - step_s if fresh else _time_of_last_step(own, after)
        found.append(
            Interruption(
                at_step=before.end_step,
                resumed_step=after.start_step,
                end=before.end,
                leave_s=max(0.0, ended - last),
                restart_s=max(0.0, after.started - max(ended, last)),
                repeat_s=max(0.0, progress - after.started),
            )
        )
    return tuple(found)


def _time_of_last_step(own: Sequence[StepLogged], life: TrainingAttempt) -> float:
    return max((event.time for event in own), default=life.started)
