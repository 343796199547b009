"""The budget of jobs that give no new checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.spec import RetrySpec
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.supervisor.continuation.unproductive_jobs import (
    UnproductiveJob,
    describe,
    is_exhausted,
    unproductive_jobs,
    usual_start_up_s,
)
from tests.unit.hpckit.specs_and_processes import make_spec

RETRY = RetrySpec(
    max_restarts=0,
    crash=0,
    infra=0,
    hang=0,
    oom=0,
    jobs_without_checkpoint=3,
    node_hours_without_checkpoint=100,
)


Told = tuple[str, dict[str, object]]
"""Kind and fields of an event."""


def job(
    number: int,
    *inside: Told,
    from_step: int = 0,
    verdict: str | None = "time_limit",
    seconds: float = 3600,
) -> list[Event]:
    """The events of a job of two nodes; each is the successor of the one before."""
    begin = number * 10_000.0
    events = [
        event_of(begin, "run_started", {"job": str(number), "hosts": ["n1", "n2"], "steps": 9}),
        event_of(begin + 1, "successor_queued", {"job": str(number + 1)}),
        event_of(begin + 2, "generation_started", {"generation": number, "from_step": from_step}),
        *(event_of(begin + 75, kind, dict(told)) for kind, told in inside),
    ]
    ended = {"generation": number, "verdict": verdict, "reason": "", "step": 0}
    if verdict is None:
        return [*events, event_of(begin + seconds, "agent_killed", {})]
    return [*events, event_of(begin + seconds, "generation_ended", ended)]


TRAINED: Told = ("training_started", {"step": 0, "world_size": 2})
STEPPED: Told = ("step", {"step": 5, "step_s": 1.0})
FURTHER: Told = ("step", {"step": 9, "step_s": 1.0})


def saved(step: int) -> Told:
    return ("checkpoint_committed", {"step": step})


def counted(events: Sequence[Event], *, is_program: bool = False) -> int:
    return len(unproductive_jobs(events, is_program=is_program))


def test_jobs_count_whatever_ended_them() -> None:
    events = [
        *job(1, TRAINED, STEPPED),
        *job(2, verdict="preempted"),
        *job(3, verdict=None),
        *job(4, verdict="infra", seconds=1800),
    ]
    jobs = unproductive_jobs(events, is_program=False)
    assert [one.verdict for one in jobs] == ["time_limit", "preempted", None, "infra"]
    assert [one.start_up_s for one in jobs] == [75.0, None, None, None]
    assert [one.has_stepped for one in jobs] == [True, False, False, False]
    assert sum(one.node_hours for one in jobs) == pytest.approx(2 * 3.5)


def test_a_new_checkpoint_begins_the_count_again() -> None:
    long = [event for n in range(1, 9) for event in job(n, TRAINED, saved(n), from_step=n - 1)]
    assert counted(long) == 0, "a run that saves at each preemption goes on for ever"
    assert counted([*long, *job(9, from_step=8)]) == 1
    resumed: Told = ("training_started", {"step": 8, "world_size": 2})
    assert counted([*long, *job(9, resumed, saved(8), from_step=8)]) == 1, "it is no new one"


def test_a_checkpoint_that_the_next_job_finds_was_made_by_the_one_before() -> None:
    events = [*job(1), *job(2), *job(3, from_step=7)]
    assert counted(events) == 1
    assert counted([*events, *job(4, from_step=7)]) == 2


def test_a_checkpoint_after_a_damaged_one_is_new() -> None:
    older: Told = ("training_started", {"step": 2, "world_size": 2})
    events = [*job(1, from_step=8), *job(2, older, saved(4), from_step=8)]
    assert counted(events) == 0


def test_a_person_begins_the_count_again() -> None:
    assert counted([*job(1), *job(2), *job(7)]) == 1


def test_outside_of_slurm_nothing_counts() -> None:
    assert counted([event_of(1.0, "run_started", {"steps": 9})] * 9) == 0


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ([saved(5)], [saved(9)], 0),
        ([STEPPED], [FURTHER], 0),  # it resumes from its own files
        ([STEPPED], [STEPPED], 1),
        ([], [], 2),
    ],
)
def test_a_program_may_report_steps_alone(
    first: list[Told],
    second: list[Told],
    left: int,
) -> None:
    events = [*job(1, *first, seconds=600), *job(2, *second, seconds=600)]
    assert counted(events, is_program=True) == left


def test_a_program_that_reports_nothing_may_have_saved_what_took_long() -> None:
    events = [*job(1), *job(2), *job(3)]
    assert counted(events, is_program=True) == 1
    assert counted(events) == 3


ONE = UnproductiveJob(4, 3600.0, None, False, "time_limit")


def test_the_budget_is_of_jobs_or_of_node_hours() -> None:
    assert not is_exhausted([ONE] * 2, RETRY)
    assert is_exhausted([ONE] * 3, RETRY)
    large = replace(ONE, nodes=60)
    assert is_exhausted([large] * 2, RETRY)
    assert not is_exhausted([replace(large, nodes=600)], RETRY), "one never ends a run"
    free = replace(RETRY, jobs_without_checkpoint=None, node_hours_without_checkpoint=None)
    assert not is_exhausted([large] * 99, free)


@given(st.lists(st.floats(0, 1e6), max_size=9), st.integers(1, 9))
def test_more_jobs_never_give_the_budget_back(seconds: list[float], most: int) -> None:
    retry = replace(RETRY, jobs_without_checkpoint=most)
    jobs = [replace(ONE, seconds=each) for each in seconds]
    found = [is_exhausted(jobs[:count], retry) for count in range(len(jobs) + 1)]
    assert found == sorted(found)


def test_what_it_cost_and_what_to_change_is_told() -> None:
    limits = {"cluster.slurm.time_limit": "01:00:00", "cluster.slurm.notice_s": 45}
    spec = make_spec(limits, "slurm")
    told = describe([ONE] * 3, spec)
    assert told.startswith(
        "3 jobs in a row gave no new checkpoint in 12 node-hours (the last one: time limit after"
    )
    assert "none of them trained within 60 min: raise cluster.slurm.time_limit (01:00:00)" in told
    told = describe([replace(ONE, start_up_s=900.0, has_stepped=True, verdict=None)], spec)
    assert "trained after up to 15 min" in told
    assert "cluster.slurm.notice_s (45)" in told
    assert "checkpoint.every_steps" in told


def test_the_usual_start_of_earlier_jobs() -> None:
    assert usual_start_up_s(job(1, TRAINED)) is None, "there is no earlier one"
    assert usual_start_up_s([*job(1, TRAINED), *job(2)]) == 75.0
    assert usual_start_up_s([*job(1, seconds=90), *job(2, TRAINED)]) == 90.0
    assert usual_start_up_s([]) is None


@pytest.mark.parametrize(
    ("limit", "notice_s", "is_refused"),
    [
        ("00:02:00", 120, True),
        ("00:02:00", 119, False),
        ("00:01:00", 120, True),
        ("1-00:00:00", 120, False),
        (None, 120, False),
    ],
)
def test_a_notice_as_long_as_the_job_is_refused(
    limit: str | None, notice_s: int, is_refused: bool
) -> None:
    changes = {"cluster.slurm.time_limit": limit, "cluster.slurm.notice_s": notice_s}
    if is_refused:
        with pytest.raises(SpecError, match=r"cluster\.slurm\.notice_s: .* no time to train"):
            make_spec(changes, "slurm")
    else:
        make_spec(changes, "slurm")
