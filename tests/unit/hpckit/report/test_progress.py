from __future__ import annotations

from typing import Any

import pytest

from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.report.progress import build_progress


def event(time: float, kind: str, **fields: Any) -> Event:
    return event_of(time, kind, fields)


def steps(start: float, generation: int, numbers: range, step_s: float) -> list[Event]:
    return [
        event(start + i, "step", generation=generation, step=n, step_s=step_s, loss=9 - n, lr=1.0)
        for i, n in enumerate(numbers)
    ]


LIFE = [
    event(1, "run_started", job="7", hosts=["a", "b"], steps=100),
    event(2, "successor_queued", job="8"),
    event(3, "generation_started", generation=1, nodes=2, from_step=0),
    event(4, "training_started", generation=1, world_size=4, step=0, attempt=0),
    *steps(5, 1, range(1, 4), 2.0),
    event(8, "checkpoint_committed", step=2),
]
LOST = [
    event(9, "worker_lost", generation=1, node=0, step=3, attempt=0),
    event(10, "training_started", generation=1, world_size=4, step=2, attempt=1),
]
NEXT = [
    event(20, "generation_ended", generation=1, verdict="infra", final=False, saved_step=2),
    event(21, "generation_started", generation=2, nodes=1, from_step=2),
    event(22, "training_started", generation=2, world_size=2, step=2, attempt=0),
    *steps(23, 2, range(3, 6), 0.5),
]


def test_a_run_under_way() -> None:
    found = build_progress(LIFE)
    assert (found.step, found.steps, found.step_time, found.loss) == (3, 100, 7, 6)
    assert (found.saved_step, found.saved_time) == (2, 8)
    assert (found.generation, found.nodes, found.ranks) == (1, 2, 4)
    assert (found.job, found.successor, found.hosts) == ("7", "8", ("a", "b"))
    assert (found.is_training, found.interruptions) == (True, {})


def test_the_steps_of_a_parent_are_no_time_of_a_fork() -> None:
    begun = event(4, "training_started", generation=1, world_size=4, step=100, attempt=0)
    found = build_progress([*LIFE[:3], begun, *steps(5, 1, range(101, 104), 1.0)])
    assert found.ettr == pytest.approx(3 / 6)


def test_the_newest_validation_is_told_in_words() -> None:
    assert build_progress(LIFE).validated is None
    told = [event(9 + n, "validated", step=n, seconds=1.5, val_loss=5.0 - n) for n in (1, 2)]
    assert build_progress([*LIFE, *told]).validated == "val_loss 3 at step 2"


def test_a_restart_goes_back_and_is_counted() -> None:
    waiting = build_progress([*LIFE, *LOST[:1]])
    assert not waiting.is_training
    again = build_progress([*LIFE, *LOST])
    assert (again.step, again.is_training) == (2, True)
    assert again.interruptions == {"worker lost": 1}


def test_the_rate_is_that_of_the_newest_generation() -> None:
    found = build_progress([*LIFE, *LOST, *NEXT])
    assert found.step_s == pytest.approx(0.5)
    assert (found.nodes, found.ranks, found.step) == (1, 2, 5)
    assert found.interruptions == {"infra": 1, "worker lost": 1}


def test_the_successor_that_begins_is_none_any_more_and_a_silent_end_is_counted() -> None:
    found = build_progress([*LIFE, event(30, "run_started", job="8", steps=100)])
    assert (found.job, found.successor) == ("8", None)
    assert found.interruptions == {"killed": 1}
    cancelled = build_progress([*LIFE, event(30, "successor_cancelled", job="8")])
    assert cancelled.successor is None


def test_a_failure_of_the_supervisor_counts_until_the_next_one() -> None:
    failed = [*LIFE, event(30, "run_failed", error="no GPU")]
    assert build_progress(failed).failure == "no GPU"
    assert build_progress([*failed, event(31, "run_started", steps=100)]).failure is None


def test_nothing_yet() -> None:
    found = build_progress([])
    assert (found.step, found.steps, found.begun, found.saved_step) == (0, None, None, 0)


def test_stragglers_are_those_of_the_newest_attempt_that_are_still_slow() -> None:
    def slow(time: float, rank: int, kind: str = "straggler") -> Event:
        return event(time, kind, generation=1, rank=rank, host=f"n{rank}", step=3, excess=0.5, z=9)

    said = [slow(8.1, 3), slow(8.2, 1), slow(8.3, 2), slow(8.4, 2, "straggler_over")]
    told = build_progress([*LIFE, *said]).stragglers
    assert told == tuple(
        f"rank {rank} on n{rank} takes 50% longer than ranks with the same work" for rank in (1, 3)
    )
    assert build_progress([*LIFE, *said, *LOST]).stragglers == ()
    assert build_progress(said).stragglers == ()
