"""The thread that submits evaluations: nothing twice, whoever is killed, and never in the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from checkpointing.events import CheckpointPruned
from hpckit.evaluation import evaluation_watch
from hpckit.evaluation.evaluation_jobs import EvaluationSubmitError
from hpckit.evaluation.evaluation_watch import EvaluationWatch
from hpckit.events.event_log import EventLog, read_events
from hpckit.events.schema import Degraded, EvaluationSkipped, EvaluationSubmitted
from hpckit.report.evaluation.evaluation_records import EvaluationRecord
from hpckit.rundir.directory import RunDir
from tests.unit.hpckit.evaluation.evaluation_events import begun, committed, done, id_of
from tests.unit.hpckit.specs_and_processes import make_spec, until

CHANGES = {
    "eval.every": 10,
    "eval.entry": "mine:evaluate",
    "eval.max_pending": 2,
    "eval.retries": 1,
    "train.steps": 1000,
}


@dataclass
class FakeQueue:
    """A queue of jobs in memory, in the place of Slurm's."""

    jobs: dict[str, str] = field(default_factory=dict)
    """The numbers of jobs that exist by the ids of their checkpoints."""
    number: int = 0
    problem: str | None = None
    hides_answers: bool = False
    """Whether it takes jobs, and says that it has not."""

    def submit(self, evaluations: Sequence[EvaluationRecord]) -> list[dict[str, Any]]:
        if self.problem is not None and not self.hides_answers:
            raise EvaluationSubmitError(self.problem)
        made = []
        for one in evaluations:
            self.number += 1
            assert one.id not in self.jobs, "it is submitted twice"
            self.jobs[one.id] = str(self.number)
            made.append({"job": str(self.number)})
        if self.problem is not None:
            raise EvaluationSubmitError(self.problem)
        return made

    def find(self) -> dict[str, dict[str, Any]]:
        return {id_: {"job": job} for id_, job in self.jobs.items()}

    def alive(self, evaluations: Sequence[EvaluationRecord]) -> Collection[str]:
        return set(self.jobs)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Without pauses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation_watch, "TICK_S", 0.01)
        patch.setattr(evaluation_watch, "CHECK_S", {"slurm": 0.0, "local": 0.0})
        patch.setattr(evaluation_watch, "PAUSES_S", (0.0,))
        patch.setattr(evaluation_watch, "END_S", 120.0)  # of a busy machine
        yield


@dataclass
class Watched:
    run: RunDir
    events: EventLog
    queue: FakeQueue = field(default_factory=FakeQueue)

    def watch(self, **changes: Any) -> EvaluationWatch:
        spec = make_spec({**CHANGES, **changes}, "slurm")
        return EvaluationWatch(self.run, spec, self.events, self.queue)

    def submitted(self) -> list[tuple[int, str | None]]:
        found = read_events(self.run.events)
        return [(one.step, one.job) for one in found if isinstance(one, EvaluationSubmitted)]

    def wait_until(self, holds: Callable[[], bool]) -> None:
        until(holds)

    def end(self, step: int) -> None:
        """The job of the step's evaluation ends with metrics."""
        folder = self.run.evaluation(id_of(step))
        folder.mkdir(parents=True)
        with EventLog(folder / "events.jsonl") as own:
            own.emit(begun(step, self.queue.jobs[id_of(step)]))
            own.emit_kind("evaluation_ended", **{**done(step).fields})
        del self.queue.jobs[id_of(step)]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    run = RunDir(tmp_path / "t-1")
    run.path.mkdir()
    with EventLog(run.events, submission=1) as events:
        yield Watched(run, events)


def test_places_that_become_free_are_taken_and_the_next_supervisor_submits_the_rest(
    watched: Watched,
) -> None:
    for step in (5, 10, 20, 30):
        watched.events.emit(committed(step))
    watch = watched.watch()
    watched.wait_until(lambda: len(watched.submitted()) == 2)
    watch.close()  # as after a preemption: the rest is for the next one
    assert watched.submitted() == [(10, "1"), (20, "2")]
    watched.end(10)

    second = watched.watch()
    watched.wait_until(lambda: len(watched.submitted()) == 3)
    watched.events.emit(committed(40))
    watched.events.emit(committed(50))
    second.announce_end(True)
    second.close()  # nothing can be submitted later
    assert [step for step, _ in watched.submitted()] == [10, 20, 30, 40, 50]
    assert len(watched.queue.jobs) == 4


def test_what_was_pruned_before_is_not_submitted(watched: Watched) -> None:
    """As in a run whose config has got eval.every later."""
    for step in (10, 20):
        watched.events.emit(committed(step))
    watched.events.emit(CheckpointPruned(step=10, id=id_of(10)))
    watch = watched.watch()
    watched.wait_until(lambda: watched.submitted() == [(20, "1")])
    watch.close()
    found = read_events(watched.run.events)
    (skipped,) = [event for event in found if isinstance(event, EvaluationSkipped)]
    assert (skipped.step, skipped.why) == (10, "retention has removed the checkpoint")


def test_what_a_killed_supervisor_has_submitted_without_a_record_is_found(
    watched: Watched,
) -> None:
    watched.queue.jobs[id_of(10)] = "77"
    watched.events.emit(committed(10))
    watch = watched.watch()
    watched.wait_until(lambda: watched.submitted() == [(10, "77")])
    watch.close()


def test_a_job_that_was_accepted_without_an_answer_is_not_submitted_again(
    watched: Watched,
) -> None:
    watched.queue.problem, watched.queue.hides_answers = "Socket timed out", True
    watched.events.emit(committed(10))
    watch = watched.watch()
    watched.wait_until(lambda: watched.submitted() == [(10, "1")])
    watch.close()


def test_a_refusal_is_degraded_once_and_tried_again_until_it_is_given_up(
    watched: Watched,
) -> None:
    watched.queue.problem = "Invalid qos"
    watched.events.emit(committed(10))
    watch = watched.watch()
    watched.wait_until(
        lambda: any(isinstance(e, EvaluationSkipped) for e in read_events(watched.run.events))
    )
    watched.queue.problem = None
    watched.events.emit(committed(20))
    watched.wait_until(lambda: watched.submitted() == [(20, "1")])
    watch.close()
    (degraded,) = [e for e in read_events(watched.run.events) if isinstance(e, Degraded)]
    assert degraded.subject == "evaluation"
    assert "Invalid qos" in degraded.what


def test_a_job_that_vanishes_without_a_result_is_submitted_again_and_then_given_up(
    watched: Watched,
) -> None:
    watched.events.emit(committed(10))
    watch = watched.watch()
    watched.wait_until(lambda: watched.submitted() == [(10, "1")])
    del watched.queue.jobs[id_of(10)]
    watched.wait_until(lambda: watched.submitted() == [(10, "1"), (10, "2")])
    del watched.queue.jobs[id_of(10)]
    watched.wait_until(
        lambda: any(isinstance(e, EvaluationSkipped) for e in read_events(watched.run.events))
    )
    watch.close()
    assert len(watched.submitted()) == 2


def test_one_that_ends_at_once_is_not_taken_for_lost(watched: Watched) -> None:
    watched.events.emit(committed(10))
    watch = watched.watch()
    watched.wait_until(lambda: watched.submitted() == [(10, "1")])
    watched.end(10)
    watched.events.emit(committed(20))
    watched.wait_until(lambda: len(watched.submitted()) == 2)
    watch.close()
    assert watched.submitted() == [(10, "1"), (20, "2")]
