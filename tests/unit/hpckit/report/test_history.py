"""From events to lives and interruptions; seconds are those of the events, so all adds up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.report.history import History, build_history
from tests.effort import times


class Story:
    """Writes the events of a run; a step takes one second."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 1000.0
        self.life: dict[str, Any] = {}

    def tell(self, kind: str, after: float = 0.0, **fields: Any) -> None:
        self.now += after
        self.events.append(event_of(self.now, kind, fields))

    def supervisor(self, steps: int = 100) -> None:
        self.tell("run_started", steps=steps, pid=1)

    def generation(self, number: int, nodes: int) -> None:
        self.life = {"generation": number, "attempt": 0, "rank": 0}
        self.tell("generation_started", generation=number, nodes=nodes, from_step=0)

    def train(self, start: int, end: int, after: float, world: int = 2, attempt: int = 0) -> None:
        self.life["attempt"] = attempt
        where = {"step": start, "world_size": world, "samples": 50}
        self.tell("training_started", after, **self.life, **where)
        for step in range(start + 1, end + 1):
            self.tell("step", 1.0, **self.life, step=step, loss=10.0 / step, step_s=1.0)

    def commit(self, step: int) -> None:
        self.tell("checkpoint_committed", **self.life, step=step, bytes=1, seconds=0.1)

    def end(self, verdict: str, step: int, after: float, reason: str = "because") -> None:
        generation = self.life["generation"]
        self.tell(
            "generation_ended",
            after,
            **{"generation": generation, "verdict": verdict, "reason": reason},
            **{"final": verdict == "done", "step": step, "saved_step": step},
        )

    def history(self, alive: bool = False) -> History:
        return build_history(self.events, alive)


def test_no_events_are_no_history() -> None:
    history = build_history([])
    assert (history.lives, history.steps_kept, history.step_s) == ((), 0, 0.0)


def test_an_undisturbed_run_is_one_life() -> None:
    story = Story()
    story.supervisor(steps=5)
    story.generation(1, nodes=2)
    story.train(0, 5, after=3.0, world=8)
    story.commit(5)
    story.end("done", 5, after=0.5)
    story.tell("run_ended", verdict="done", status=0)
    history = story.history()
    (life,) = history.lives
    assert (life.generation, life.attempt, life.nodes, life.world_size) == (1, 0, 2, 8)
    assert (life.start_step, life.end_step, life.end, life.reason) == (0, 5, "done", "because")
    assert (life.started, life.ended) == (1003.0, 1008.5)
    assert (history.interruptions, history.repeated) == ((), ())
    assert (history.steps, history.steps_kept, history.step_s) == (5, 5, 1.0)
    assert (history.samples, len(history.committed)) == (50, 1)
    assert history.finished - history.started == 8.5
    assert sorted(history.kept) == [1, 2, 3, 4, 5]


def test_a_preemption_costs_leaving_and_restarting_but_no_step() -> None:
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.train(0, 4, after=3.0)
    story.tell("asked", 0.25, generation=1, request="preempt")
    story.end("preempted", 4, after=1.75)
    story.generation(2, nodes=1)
    story.train(4, 6, after=3.0, world=1)
    history = story.history(alive=True)
    (gap,) = history.interruptions
    assert (gap.at_step, gap.resumed_step, gap.repeated, gap.end) == (4, 4, 0, "preempted")
    assert (gap.leave_s, gap.restart_s, gap.repeat_s) == (2.0, 3.0, 0.0)
    assert gap.lost_s == 5.0
    assert [(life.nodes, life.world_size, life.end) for life in history.lives] == [
        (2, 2, "preempted"),
        (1, 1, "running"),
    ]


def test_a_worker_lost_and_restarted_in_place_is_two_lives_of_one_generation() -> None:
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.train(0, 7, after=3.0)
    story.tell("worker_lost", 0.5, generation=1, node=1, local_rank=0, step=7, attempt=0)
    story.train(5, 9, after=4.0, attempt=1)
    story.end("done", 9, after=0.0)
    story.tell("run_ended", verdict="done", status=0)
    history = story.history()
    first, second = history.lives
    assert (first.end, first.reason) == ("worker lost", "restarted in place")
    assert (second.generation, second.attempt, second.end) == (1, 1, "done")
    (gap,) = history.interruptions
    assert (gap.at_step, gap.resumed_step, gap.repeated) == (7, 5, 2)
    assert (gap.leave_s, gap.restart_s, gap.repeat_s) == (0.5, 4.0, 2.0)
    assert [event["step"] for event in history.repeated] == [6, 7]
    assert all(history.kept[step]["attempt"] == (step > 5) for step in range(1, 10))


def test_a_lost_agent_is_an_infra_verdict_and_its_steps_are_repeated() -> None:
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.train(0, 8, after=3.0)
    story.end("infra", 0, after=2.0, reason="lost the agent of node 1")
    story.generation(2, nodes=2)
    story.train(5, 10, after=3.0)
    history = story.history()
    (gap,) = history.interruptions
    assert (gap.end, gap.at_step, gap.resumed_step, gap.repeated) == ("infra", 8, 5, 3)
    assert (gap.leave_s, gap.restart_s, gap.repeat_s) == (2.0, 3.0, 3.0)
    assert history.lives[0].reason == "lost the agent of node 1"


def test_a_supervisor_killed_and_started_again_is_an_interruption_that_nobody_saw() -> None:
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.train(0, 6, after=3.0)
    story.tell("run_started", 60.0, steps=200, pid=2)
    story.generation(2, nodes=2)
    story.train(5, 8, after=3.0)
    history = story.history()
    first, _ = history.lives
    assert (first.ended, first.end) == (None, "killed")
    assert "supervisor was killed" in first.reason
    (gap,) = history.interruptions
    assert (gap.leave_s, gap.restart_s, gap.repeat_s, gap.repeated) == (0.0, 63.0, 1.0, 1)
    assert history.steps == 200


@pytest.mark.parametrize(("alive", "end"), [(True, "running"), (False, "killed")])
def test_a_life_without_an_end_runs_as_long_as_somebody_holds_the_run(
    alive: bool, end: str
) -> None:
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.train(0, 6, after=3.0)
    assert [life.end for life in story.history(alive).lives] == [end]


def test_a_killed_life_does_not_run_again_once_the_supervisor_is_started_again() -> None:
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.train(0, 6, after=3.0)
    story.tell("run_started", 60.0, steps=100, pid=2)
    assert [life.end for life in story.history(alive=True).lives] == ["killed"]


def test_a_generation_that_failed_before_it_trained_is_no_life() -> None:
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.end("crash", 0, after=2.0)
    story.generation(2, nodes=2)
    story.train(0, 3, after=3.0)
    history = story.history()
    assert [life.generation for life in history.lives] == [2]
    assert history.interruptions == ()


def test_steps_not_logged_are_known_from_the_end_of_the_generation() -> None:
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.train(0, 0, after=3.0)
    story.tell("step", 10.0, **story.life, step=10, loss=1.0, step_s=1.0)
    story.end("preempted", 14, after=5.0)
    story.generation(2, nodes=2)
    story.train(14, 14, after=3.0)
    history = story.history()
    assert history.lives[0].end_step == 14
    assert history.interruptions[0].repeated == 0
    assert history.steps_kept == 14


@pytest.mark.parametrize("second_death", [7, 9, 12])
def test_no_second_is_lost_twice(second_death: int) -> None:
    """The second life dies before, at, or after the step that the first had reached."""
    story = Story()
    story.supervisor()
    story.generation(1, nodes=2)
    story.train(0, 10, after=3.0)
    story.end("crash", 10, after=2.0)
    story.generation(2, nodes=2)
    story.train(5, second_death, after=3.0)
    story.end("crash", second_death, after=2.0)
    story.generation(3, nodes=2)
    story.train(5, 15, after=3.0)
    history = story.history()
    lost = sum(gap.lost_s for gap in history.interruptions)
    trained = history.finished - history.lives[0].started
    assert lost + history.steps_kept * history.step_s == pytest.approx(trained)


@settings(max_examples=times(50), deadline=None)
@given(
    lives=st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 6), st.booleans()), min_size=1, max_size=5
    )
)
def test_kept_and_repeated_steps_add_up_to_the_steps_done(
    lives: list[tuple[int, int, bool]],
) -> None:
    story, start, done = Story(), 0, 0
    story.supervisor()
    for number, (steps, back, is_preempted) in enumerate(lives, start=1):
        story.generation(number, nodes=1)
        story.train(start, start + steps, after=2.0)
        done += steps
        story.end("preempted" if is_preempted else "crash", start + steps, after=1.0)
        reached = start + steps
        start = reached if is_preempted else max(0, reached - back)
    history = story.history()
    assert history.steps_kept == reached
    assert sum(gap.repeated for gap in history.interruptions) == done - reached
    assert len(history.lives) == len(lives) == len(history.interruptions) + 1
    assert all(
        value >= 0
        for gap in history.interruptions
        for value in (gap.leave_s, gap.restart_s, gap.repeat_s)
    )
