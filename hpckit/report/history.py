"""From events to the history of a run: its lives, what each cost, and the steps that were kept.

A *life* is one attempt of one generation, from the moment its ranks train to the last step that
they finished. Pure: a list of events in, plain data out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from hpckit.config.rules.validation import PREFIX
from hpckit.events.event_log import Event


@dataclass(frozen=True)
class TrainingAttempt:
    """One attempt of one generation."""

    generation: int
    attempt: int
    world_size: int
    nodes: int
    start_step: int
    """Steps finished when it began."""
    end_step: int
    """Steps finished when it ended."""
    started: float
    ended: float | None
    """Seconds since the epoch; None while it lasts, or where nobody lived to say."""
    end: str
    """Why it ended: a verdict, `worker lost`, `killed`, or `running`."""
    reason: str
    position: int | None
    """Samples that all steps before it took, or the loader's cursor where documents are packed;
    None: of a version that had batches of one size."""
    global_batch: int | None
    """Samples of each of its steps; None: as above."""
    restore_s: float
    """That its ranks took to load their state, before it began."""


@dataclass(frozen=True)
class Interruption:
    """What lies between two lives."""

    at_step: int
    resumed_step: int
    end: str
    leave_s: float
    """From the last finished step to the end of the generation: noticing, saving, leaving."""
    restart_s: float
    """From there until all ranks train again: processes, rendezvous, restore."""
    repeat_s: float
    """From there to the first new step, less the duration of a step: steps done again."""

    @property
    def repeated(self) -> int:
        return max(0, self.at_step - self.resumed_step)

    @property
    def lost_s(self) -> float:
        return self.leave_s + self.restart_s + self.repeat_s


@dataclass(frozen=True)
class History:
    """All that a report tells of a run but its samples."""

    steps: int | None
    """Steps that the run is to have."""
    lives: tuple[TrainingAttempt, ...]
    interruptions: tuple[Interruption, ...]
    kept: dict[int, Event]
    """The record of each logged step, from the life that counts: the last one that did it."""
    repeated: tuple[Event, ...]
    """Records of steps that do not count: done again later, or lost."""
    validated: dict[int, Event]
    """What validation after each of these steps has found, the last time it was done."""
    committed: tuple[Event, ...]
    """Commits of checkpoints."""
    slow_ranks: tuple[Event, ...]
    """What ranks have said that the others waited for, each time it began."""
    samples: int | None
    """Samples of the dataset; None: documents were packed, and not counted by step."""
    started: float
    finished: float
    """Seconds since the epoch of the first and the last event."""

    @property
    def steps_kept(self) -> int:
        """Steps that the run has finished, each counted once."""
        return self.lives[-1].end_step if self.lives else 0

    @property
    def step_s(self) -> float:
        """Median duration of a step, in seconds; 0 where none was logged."""
        return median([float(event["step_s"]) for event in self.kept.values()] or [0.0])

    def record(self) -> dict[str, Any]:
        """For programs; times are seconds since the epoch."""
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
            "stragglers": [
                {name: event[name] for name in ("rank", "host", "step", "z", "excess")}
                for event in self.slow_ranks
            ],
            "checkpoints": [event["step"] for event in self.committed],
            "validated": [
                {name: found for name, found in event.fields.items() if _is_of_validation(name)}
                for _, event in sorted(self.validated.items())
            ],
            "samples": self.samples,
        }


def names_of(lives: Sequence[TrainingAttempt]) -> list[str]:
    """What to call each: its generation, "2.1" after one restart in place."""
    seen: Counter[int] = Counter()
    names = []
    for life in lives:
        again = seen[life.generation]
        names.append(f"{life.generation}.{again}" if again else str(life.generation))
        seen[life.generation] += 1
    return names


def build_history(events: Sequence[Event], alive: bool = False) -> History:
    """The history that `events`, in the order of time, tell; `alive`: the run is under way."""
    lives = _lives(events)
    if lives and lives[-1].end == "running" and not alive:
        lives = (*lives[:-1], replace(lives[-1], end="killed"))
    records = [event for event in events if event.kind == "step"]
    reached = lives[-1].end_step if lives else 0
    kept = {int(event["step"]): event for event in records if event["step"] <= reached}
    started = [event for event in events if event.kind == "training_started"]
    told = History(
        steps=next((e["steps"] for e in reversed(events) if e.kind == "run_started"), None),
        lives=lives,
        interruptions=(),
        kept=kept,
        repeated=tuple(event for event in records if kept.get(event["step"]) is not event),
        validated={
            int(event["step"]): event
            for event in events
            if event.kind == "validated" and event["step"] <= reached
        },
        committed=tuple(event for event in events if event.kind == "checkpoint_committed"),
        slow_ranks=tuple(event for event in events if event.kind == "straggler"),
        samples=started[-1].get("samples") if started else None,
        started=events[0].time if events else 0.0,
        finished=events[-1].time if events else 0.0,
    )
    return replace(told, interruptions=_interruptions(lives, records, told.step_s))


def _is_of_validation(name: str) -> bool:
    return name in ("step", "seconds") or name.startswith(PREFIX)


def _lives(events: Sequence[Event]) -> tuple[TrainingAttempt, ...]:
    starts = [i for i, event in enumerate(events) if event.kind == "training_started"]
    return tuple(_life(events, i, end) for i, end in pairwise([*starts, len(events)]))


def _life(events: Sequence[Event], start: int, end: int) -> TrainingAttempt:
    """The life that begins with `events[start]`; the next one, if any, begins at `end`."""
    first, during = events[start], events[start + 1 : end]
    generation = first["generation"]
    nodes = next(
        (
            event["nodes"]
            for event in reversed(events[:start])
            if event.kind == "generation_started" and event["generation"] == generation
        ),
        0,
    )
    ended, why, reason = _end_of(generation, during, is_last=end == len(events))
    steps = [first["step"]]
    steps += [e["step"] for e in during if e.kind in ("step", "checkpoint_started", "worker_lost")]
    steps += [
        e["step"] for e in during if e.kind == "generation_ended" and e["generation"] == generation
    ]
    return TrainingAttempt(
        generation=generation,
        attempt=first.get("attempt", 0),
        world_size=first["world_size"],
        nodes=nodes,
        start_step=first["step"],
        end_step=max(steps),
        started=first.time,
        ended=ended,
        end=why,
        reason=reason,
        position=first.get("position"),
        global_batch=first.get("global_batch"),
        restore_s=first.get("restore_s", 0.0),
    )


def _end_of(
    generation: int, during: Sequence[Event], is_last: bool
) -> tuple[float | None, str, str]:
    for event in during:
        if event.kind == "generation_ended" and event["generation"] == generation:
            return event.time, str(event["verdict"]), str(event["reason"])
    for event in during:
        if event.kind == "worker_lost":
            return event.time, "worker lost", "restarted in place"
    if any(event.kind == "run_started" for event in during):
        return None, "killed", "the supervisor was killed; started again"
    if is_last and not any(event.kind == "run_ended" for event in during):
        return None, "running", ""
    return None, "failed", "restarted in place"


def _interruptions(
    lives: Sequence[TrainingAttempt], records: Sequence[Event], step_s: float
) -> tuple[Interruption, ...]:
    found = []
    by_life: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in records:
        by_life[event["generation"], event.get("attempt", 0)].append(event)
    reached = 0
    for before, after in pairwise(lives):
        reached = max(reached, before.end_step)
        own = by_life[after.generation, after.attempt]
        last = _time_of_last_step(by_life[before.generation, before.attempt], before)
        ended = before.ended if before.ended is not None else last
        fresh = [event.time for event in own if event["step"] > reached]
        # a life that reaches nothing new was in vain up to its last step
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


def _time_of_last_step(own: Sequence[Event], life: TrainingAttempt) -> float:
    return max((event.time for event in own), default=life.started)
