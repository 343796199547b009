"""The evaluations of a run, by its events and by those that each evaluation writes to a file of its
own. Reading asks no process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from checkpointing.events import CheckpointCommitted
from hpckit.config.last_step import last_step
from hpckit.config.rules.validation_and_evaluation import EVAL_PREFIX
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventTail
from hpckit.events.event_validation import is_valid
from hpckit.events.schema import (
    EvaluationEnded,
    EvaluationSkipped,
    EvaluationStarted,
    EvaluationSubmitted,
    Event,
)
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import holder

EVENTS, LOG, LOCK = "events.jsonl", "log", "lock"
"""Names in the folder of an evaluation."""


class EvaluationState(StrEnum):
    """What has become of the evaluation of a checkpoint."""

    WAITING = "waiting"
    """It is not submitted yet."""
    PENDING = "pending"
    """It is submitted, and does not run now."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    LEFT_OUT = "left out"


@dataclass(frozen=True)
class EvaluationRecord:
    """The evaluation of one checkpoint."""

    step: int
    """The step of the checkpoint."""
    id: str
    """Its id."""
    submitted: tuple[EvaluationSubmitted, ...] = ()
    skipped: EvaluationSkipped | None = None
    attempts: tuple[tuple[EvaluationStarted, EvaluationEnded | None], ...] = ()
    """The starts, oldest first, each with its end; None: it was killed, or still runs."""
    is_running: bool = False
    """Whether a process holds the lock of the evaluation."""

    @property
    def success(self) -> EvaluationEnded | None:
        """The newest end with metrics."""
        ends = [end for _, end in self.attempts if end is not None and end.error is None]
        return ends[-1] if ends else None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics by their names with the prefix; empty if there are none."""
        return {} if self.success is None else metrics_of(self.success)

    @property
    def error(self) -> str | None:
        """Why the last attempt has failed or was left out; None if that is not known."""
        if self.skipped is not None and self.success is None:
            return self.skipped.why
        ends = [end for _, end in self.attempts if end is not None]
        return ends[-1].error if ends else None

    @property
    def state(self) -> EvaluationState:
        if self.is_running:
            return EvaluationState.RUNNING
        if self.success is not None:
            return EvaluationState.DONE
        if self.skipped is not None:
            has_failed = any(end is not None for _, end in self.attempts)
            return EvaluationState.FAILED if has_failed else EvaluationState.LEFT_OUT
        if self.has_failed_last:
            return EvaluationState.FAILED
        return EvaluationState.PENDING if self.submitted else EvaluationState.WAITING

    def record(self) -> dict[str, Any]:
        """Return the evaluation as JSON values."""
        return {
            "step": self.step,
            "id": self.id,
            "state": str(self.state),
            "metrics": self.metrics,
            "error": self.error,
            "jobs": [event.job or event.pid for event in self.submitted],
            "starts": len(self.attempts),
            "seconds": self.success.seconds if self.success is not None else None,
        }

    @property
    def has_failed_last(self) -> bool:
        """Whether what was submitted last has ended with an error."""
        if not self.submitted:
            return any(end is not None and end.error for _, end in self.attempts)
        last = self.submitted[-1]
        return any(
            is_of(start, last) and end is not None and end.error is not None
            for start, end in self.attempts
        )


def is_of(start: EvaluationStarted, submitted: EvaluationSubmitted) -> bool:
    """Returns whether this start is one of what was submitted."""
    if submitted.job is not None:
        return start.job == submitted.job
    return start.job is None and start.pid == submitted.pid


def metrics_of(end: EvaluationEnded) -> dict[str, float]:
    """Returns the metrics of an evaluation that has succeeded."""
    return {
        name: float(value)
        for name, value in end.fields.items()
        if name.startswith(EVAL_PREFIX) and _is_number(value)
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def build_evaluations(
    events: Iterable[Event],
    own: Mapping[str, Sequence[Event]],
    running: frozenset[str] = frozenset(),
) -> list[EvaluationRecord]:
    """Returns the evaluations that were submitted, left out or started, by step. Pure.

    Args:
        events: of the run.
        own: the events of each evaluation by the id of its checkpoint.
        running: ids of the checkpoints that are evaluated at present.
    """
    steps: dict[str, int] = {}
    submitted: dict[str, list[EvaluationSubmitted]] = {}
    skipped: dict[str, EvaluationSkipped] = {}
    for event in events:
        match event:
            case EvaluationSubmitted():
                steps[event.id] = event.step
                submitted.setdefault(event.id, []).append(event)
            case EvaluationSkipped():
                steps[event.id] = event.step
                skipped[event.id] = event
    attempts = {id_: attempts_of(found) for id_, found in own.items()}
    steps |= {id_: found[0][0].step for id_, found in attempts.items() if found}
    return [
        EvaluationRecord(
            step,
            id_,
            tuple(submitted.get(id_, ())),
            skipped.get(id_),
            attempts.get(id_, ()),
            id_ in running,
        )
        for id_, step in sorted(steps.items(), key=lambda item: (item[1], item[0]))
    ]


def attempts_of(
    own: Iterable[Event],
) -> tuple[tuple[EvaluationStarted, EvaluationEnded | None], ...]:
    """Returns the starts of an evaluation with their ends, from its events in their order."""
    found: list[tuple[EvaluationStarted, EvaluationEnded | None]] = []
    for event in own:
        if isinstance(event, EvaluationStarted):
            found.append((event, None))
        elif isinstance(event, EvaluationEnded) and found:
            found[-1] = (found[-1][0], event)
    return tuple(found)


def read_evaluations(run: RunDir, events: Iterable[Event]) -> list[EvaluationRecord]:
    """Returns the evaluations of a run by step.

    Args:
        events: valid events of the run.
    """
    folders = sorted(path.parent for path in run.evaluations.glob(f"*/{EVENTS}"))
    own = {folder.name: read_own(folder) for folder in folders}
    running = frozenset(folder.name for folder in folders if holder(folder / LOCK) is not None)
    return build_evaluations(events, own, running)


def read_own(folder: Path) -> list[Event]:
    """Returns the valid events of one evaluation."""
    return [event for event in EventTail(folder / EVENTS).read() if is_valid(event)]


def evaluated_commits(
    events: Iterable[Event], every: int, last: int | None
) -> list[CheckpointCommitted]:
    """Returns the commits of checkpoints that are to be evaluated: those at multiples of `every`
    steps and at the `last` step, of each step the newest one, by step. Pure."""
    found = {
        event.step: event
        for event in events
        if isinstance(event, CheckpointCommitted)
        and event.id
        and event.step > 0
        and (event.step % every == 0 or event.step == last)
    }
    return [found[step] for step in sorted(found)]


def known_and_waiting(
    run: RunDir, events: Sequence[Event], spec: RunSpec | None
) -> list[EvaluationRecord]:
    """Returns the evaluations of a run by step, with those that wait to be submitted.

    Args:
        events: valid events of the run.
        spec: of its newest submission; None: it cannot be read.
    """
    known = read_evaluations(run, events)
    if spec is None or spec.eval.every is None:
        return known
    ids = {one.id for one in known}
    chosen = evaluated_commits(events, spec.eval.every, last_step(spec))
    waiting = [EvaluationRecord(e.step, e.id) for e in chosen if e.id and e.id not in ids]
    return sorted([*known, *waiting], key=lambda one: (one.step, one.id))
