"""Watches the events of a run for committed checkpoints and has them evaluated, in a thread of the
supervisor's process: training and the supervisor never wait for it.

All that the thread knows is in the events, so that the next supervisor of the run submits what this
one had no time for, and nothing twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from checkpointing.events import CheckpointCommitted, CheckpointPruned
from hpckit.config.last_step import last_step
from hpckit.config.spec import RunSpec
from hpckit.evaluation.evaluation_jobs import (
    EvaluationQueue,
    EvaluationSubmitError,
    open_queue,
)
from hpckit.evaluation.evaluation_plan import (
    EvaluationLimits,
    known_evaluations,
    plan_evaluations,
)
from hpckit.events.event_log import EventLog, EventTail
from hpckit.events.event_validation import is_valid
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    EvaluationSkipped,
    EvaluationSubmitted,
    Event,
)
from hpckit.report.evaluation.evaluation_records import (
    EvaluationRecord,
    build_evaluations,
    evaluated_commits,
    read_own,
)
from hpckit.rundir.directory import RunDir
from hpckit.slurm.squeue import QueueError

log = logging.getLogger(__name__)

TICK_S = 2.0
"""Seconds between two reads of the events; each opens a file on a shared disk."""
CHECK_S = {"slurm": 60.0, "local": 2.0}
"""Seconds between two looks for evaluations whose job or process exists no more."""
MISSES = 2
"""Looks in a row that have to miss one: on NFS, its result may be seen later than its end."""
PAUSES_S = (2.0, 5.0, 15.0, 60.0, 300.0)
"""Seconds before each new try to submit; the last number holds for all later tries."""
MOST_TRIES = 30
"""Tries to submit an evaluation, over about two hours, after which it is left out."""
END_S = 10.0
"""Seconds that the end of a run waits for its last submissions."""

End = Callable[[bool], None]
"""Announces the end of the supervisor, and whether no other one follows by itself."""


@contextmanager
def evaluated_run(
    run: RunDir,
    spec: RunSpec,
    submission: int,
    events: EventLog,
    gpus: Sequence[str],
) -> Iterator[End]:
    """Has checkpoints evaluated for the duration of the block, as `eval.every` says. The caller
    holds the run lock. The end of the block takes up to `END_S` seconds.

    Args:
        gpus: the GPUs of this machine, of which evaluations on it use those that the run does not.
    """
    queue = open_queue(run, submission, spec, tuple(gpus))
    watch = EvaluationWatch(run, spec, events, queue)
    try:
        yield watch.announce_end
    finally:
        watch.close()


class EvaluationWatch:
    """The thread that reads the events of a run and submits evaluations."""

    def __init__(
        self, run: RunDir, spec: RunSpec, events: EventLog, queue: EvaluationQueue
    ) -> None:
        self._run, self._events, self._queue = run, events, queue
        self._kind, self._every = spec.cluster.kind, spec.eval.every or 0
        self._last = last_step(spec)
        most = spec.eval.max_pending if self._kind == "slurm" else 1
        self._limits = EvaluationLimits(most, spec.eval.retries, spec.eval.backlog)
        self._known: list[Event] = []
        self._emitted: set[tuple[str, float, str]] = set()
        self._own: dict[str, list[Event]] = {}
        self._missed: Counter[tuple[str, int]] = Counter()
        self._checked_s = float("-inf")
        self._is_sure = False  # whether all that is submitted is known
        self._tries: Counter[str] = Counter()
        self._failures, self._next_try_s = 0, 0.0
        self._is_final = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="evaluations", daemon=True)
        self._thread.start()

    def announce_end(self, is_final: bool) -> None:
        """Says whether no other supervisor follows by itself, so that all that wait are submitted
        at the end."""
        self._is_final = is_final

    def close(self) -> None:
        """Waits for the last submissions, for `END_S` seconds at most."""
        self._ending.set()
        self._thread.join(END_S)
        if self._thread.is_alive():
            self._degrade("evaluations are still being submitted, and are given up")

    def _watch(self) -> None:
        try:
            self._serve()
        except Exception as error:
            log.exception("no further checkpoints are evaluated")
            self._degrade(f"no further checkpoints are evaluated: {error}")

    def _serve(self) -> None:
        tail = EventTail(self._run.events)
        kinds = (CheckpointCommitted, CheckpointPruned, EvaluationSubmitted, EvaluationSkipped)
        while True:
            is_ending = self._ending.is_set()
            for event in tail.read():
                # those that it has emitted itself are known, also if they could not be written
                if (
                    isinstance(event, kinds)
                    and is_valid(event)
                    and _key(event) not in self._emitted
                ):
                    self._known.append(event)
            self._act(is_ending)
            if is_ending:
                return
            self._ending.wait(TICK_S)

    def _act(self, is_ending: bool) -> None:
        if is_ending and not self._is_final:
            return  # the next supervisor decides; Slurm is not asked in the last seconds of a job
        evaluations = self._evaluations()
        lost = self._lost(evaluations)
        is_last = is_ending  # with a final verdict
        removed = {one.id for one in self._known if isinstance(one, CheckpointPruned) and one.id}
        plan = plan_evaluations(evaluations, self._limits, lost, removed=removed, is_last=is_last)
        for one, why in plan.skip:
            self._skip(one, why)
        if not plan.submit:
            return
        if is_last or time.monotonic() >= self._next_try_s:
            self._submit(plan.submit, is_last)

    def _evaluations(self) -> list[EvaluationRecord]:
        chosen = evaluated_commits(self._known, self._every, self._last)
        known = known_evaluations(chosen, build_evaluations(self._known, self._own))
        for one in known:
            if one.submitted and one.success is None and one.skipped is None:
                self._own[one.id] = read_own(self._run.evaluation(one.id))
        return known_evaluations(chosen, build_evaluations(self._known, self._own))

    def _lost(self, evaluations: Sequence[EvaluationRecord]) -> set[str]:
        """Returns the ids of those whose last submission exists no more, without a result."""
        pending = [
            one
            for one in evaluations
            if one.submitted and not (one.success or one.skipped or one.has_failed_last)
        ]
        if pending and time.monotonic() - self._checked_s >= CHECK_S[self._kind]:
            self._checked_s = time.monotonic()
            try:
                alive = self._queue.alive(pending)
            except QueueError as error:
                log.warning("it is not known which evaluations are queued: %s", error)
                return set()
            for one in pending:
                key = (one.id, len(one.submitted))
                self._missed[key] = 0 if one.id in alive else self._missed[key] + 1
        return {one.id for one in pending if self._missed[one.id, len(one.submitted)] >= MISSES}

    def _submit(self, evaluations: Sequence[EvaluationRecord], is_last: bool) -> None:
        try:
            if not self._is_sure:
                evaluations = self._adopt(evaluations)
                self._is_sure = True
            if evaluations:
                self._is_sure = False  # until it is known whether it has succeeded
                for one, fields in zip(evaluations, self._queue.submit(evaluations), strict=True):
                    self._record(one, fields)
                self._is_sure = True
        except (EvaluationSubmitError, QueueError) as error:
            self._note_failure(evaluations, str(error), is_last)
            return
        self._failures = 0
        for one in evaluations:
            del self._tries[one.id]

    def _adopt(self, evaluations: Sequence[EvaluationRecord]) -> list[EvaluationRecord]:
        """Records those that a former supervisor has submitted, or this one without an answer, and
        returns those that are not submitted."""
        found = self._queue.find()
        for one in evaluations:
            fields = found.get(one.id)
            # one that has failed may take a moment to end
            is_known = any((o.job, o.pid) == _job_and_pid(fields) for o in one.submitted)
            if fields is not None and not is_known:
                self._record(one, fields)
        return [one for one in evaluations if one.id not in found]

    def _record(self, one: EvaluationRecord, fields: dict[str, Any]) -> None:
        event = EvaluationSubmitted(step=one.step, id=one.id, **fields)
        log.info("the evaluation of step %d is submitted: %s", one.step, fields)
        self._emit(event)

    def _skip(self, one: EvaluationRecord, why: str) -> None:
        log.warning("step %d is not evaluated: %s", one.step, why)
        self._emit(EvaluationSkipped(step=one.step, id=one.id, why=why))

    def _emit(self, event: Event) -> None:
        self._known.append(event)
        self._emitted.add(_key(event))
        self._events.emit(event)

    def _note_failure(
        self, evaluations: Sequence[EvaluationRecord], problem: str, is_last: bool
    ) -> None:
        pause_s = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._next_try_s = time.monotonic() + pause_s
        self._failures += 1
        log.warning("evaluations are not submitted, try %d: %s", self._failures, problem)
        if is_last:
            steps = ", ".join(str(one.step) for one in evaluations)
            by_hand = f"hpckit eval {self._run.path}@STEP evaluates a checkpoint by hand"
            self._degrade(
                f"the evaluations of steps {steps} are not submitted: {problem}; {by_hand}"
            )
            return
        if self._failures == 1:
            self._degrade(f"evaluations are not submitted, and hpckit tries again: {problem}")
        for one in evaluations:
            self._tries[one.id] += 1
            if self._tries[one.id] >= MOST_TRIES:
                self._skip(one, f"it could not be submitted {MOST_TRIES} times: {problem}")

    def _degrade(self, what: str) -> None:
        self._events.emit(Degraded(subject=DegradedSubject.EVALUATION, what=what))


def _key(event: Event) -> tuple[str, float, str]:
    """Returns what an event has in common with itself as it is read back: the log adds fields."""
    return event.kind, event.time, str(event.get("id"))


def _job_and_pid(fields: dict[str, Any] | None) -> tuple[Any, Any]:
    found = fields or {}
    return found.get("job"), found.get("pid")
