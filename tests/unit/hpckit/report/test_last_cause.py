"""What happened to a run last is said as it is: only what trains again has recovered."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.events.schema import Event, event_of
from hpckit.report.interruptions import interruptions, last_interruption
from hpckit.report.last_cause import last_cause
from hpckit.report.run_state import RunState
from tests.unit.hpckit.report.test_why import overview

WAITS = "2|PENDING|2600|N/A|1:00|2|low||(null)|Resources|t"


def event(time: float, kind: str, **fields: Any) -> Event:
    return event_of(time, kind, fields)


STARTED = event(1000.0, "run_started", steps=100, job="1")
PREEMPTED = event(
    1900.0, "generation_ended", generation=1, verdict="preempted", reason="x", final=False, step=40
)


@pytest.mark.parametrize(
    ("state", "jobs", "said"),
    [
        (RunState.RUNNING, (), "preemption at step 40, 100 s ago; it has recovered"),
        (RunState.STARTING, (), "preemption at step 40, 100 s ago; it is starting again"),
        (RunState.WAITING, (WAITS,), "preemption at step 40, 100 s ago; job 2 waits: it is next"),
        (RunState.DEAD, (), "the supervisor ended without a verdict: it was killed"),
    ],
)
def test_an_interruption_is_said_with_what_became_of_it(
    state: RunState, jobs: tuple[str, ...], said: str
) -> None:
    it = overview(state, *jobs, events=[STARTED, PREEMPTED])
    assert last_cause(it, 2000.0).startswith(said)
    assert ("recovered" in last_cause(it, 2000.0)) is (state is RunState.RUNNING)


def test_nothing_is_said_of_a_run_that_was_never_interrupted() -> None:
    assert last_cause(overview(RunState.RUNNING, events=[STARTED]), 2000.0) == ""


@pytest.mark.parametrize(
    ("kind", "reason", "said"),
    [
        ("done", "reached the last step", "it reached its last step"),
        (
            "permanent",
            "ValueError: no shards",
            "it failed with an error that another attempt cannot fix: ValueError: no shards",
        ),
    ],
)
def test_an_end_is_said_in_words(kind: str, reason: str, said: str) -> None:
    verdict = {"kind": kind, "reason": reason, "final": True}
    assert last_cause(overview(RunState.ENDED, verdict=verdict), 2000.0) == said


def test_each_kind_of_interruption_is_found() -> None:
    killed = [STARTED, event(1500.0, "step", generation=1, step=7, step_s=1.0), STARTED]
    found = last_interruption(killed)
    assert found is not None
    assert (found.kind, found.step, found.time) == ("killed", 7, 1500.0)
    lost = [STARTED, event(1600.0, "worker_lost", generation=1, node=0, step=9, attempt=0)]
    found = last_interruption(lost)
    assert found is not None
    assert (found.kind, found.step) == ("worker lost", 9)
    assert interruptions(killed) == {"killed": 1}
    assert last_interruption([STARTED]) is None
