from __future__ import annotations

from typing import Any

import pytest

from hpckit.events.event_log import Event
from hpckit.events.schema import event_of
from hpckit.report.progress import build_progress
from hpckit.report.run_state import RunState, decide_state, is_current
from hpckit.slurm.squeue import parse_queue


def event(time: float, kind: str, **fields: Any) -> Event:
    return event_of(time, kind, fields)


def job(number: int, state: str) -> str:
    return f"{number}|{state}|N/A|N/A|UNLIMITED|2|low||(null)|None|s"


BEGUN = [
    event(10, "run_started", job="1", steps=100),
    event(11, "successor_queued", job="2"),
    event(12, "generation_started", generation=1, nodes=2, from_step=0),
]
TRAINS = [*BEGUN, event(13, "training_started", generation=1, world_size=2, step=0)]
PREEMPTED = [
    *TRAINS,
    event(20, "generation_ended", generation=1, verdict="preempted", final=False, saved_step=5),
    event(21, "run_ended", verdict="preempted"),
]
ENDED = [*TRAINS, event(21, "run_ended", verdict="stopped")]
FINAL = {"kind": "stopped", "final": True, "time": 20.0}
OLD = {**FINAL, "time": 5.0}
OPEN = {"kind": "preempted", "final": False, "time": 20.0}


@pytest.mark.parametrize(
    ("events", "verdict", "held", "starting", "jobs", "state"),
    [
        ([], None, False, False, [job(1, "PENDING")], RunState.QUEUED),
        ([], None, False, False, [job(1, "RUNNING")], RunState.STARTING),
        ([], None, False, False, [], RunState.DEAD),
        ([], None, False, True, [], RunState.STARTING),
        (BEGUN, None, True, False, [job(1, "RUNNING")], RunState.STARTING),
        (TRAINS, None, True, False, [job(1, "RUNNING"), job(2, "PENDING")], RunState.RUNNING),
        # a file system that does not share locks
        (TRAINS, None, False, False, [job(1, "RUNNING"), job(2, "PENDING")], RunState.RUNNING),
        (TRAINS, None, False, False, [job(1, "FAILED")], RunState.DEAD),
        (TRAINS, OLD, False, False, [], RunState.DEAD),
        (TRAINS, None, True, False, None, RunState.RUNNING),
        (TRAINS, None, False, False, None, RunState.UNKNOWN),
        (
            PREEMPTED,
            OPEN,
            False,
            False,
            [job(1, "COMPLETING"), job(2, "PENDING")],
            RunState.WAITING,
        ),
        (PREEMPTED, OPEN, False, False, [job(2, "CONFIGURING")], RunState.STARTING),
        (PREEMPTED, OPEN, False, False, [], RunState.DEAD),
        (ENDED, FINAL, False, False, [job(1, "COMPLETING")], RunState.ENDED),
        (ENDED, FINAL, False, False, None, RunState.ENDED),
        (ENDED, FINAL, False, False, [job(3, "PENDING")], RunState.QUEUED),
        ([event(9, "run_failed", error="x")], None, False, False, [], RunState.FAILED),
        ([event(9, "run_failed", error="x"), *TRAINS], None, False, False, [], RunState.DEAD),
    ],
)
def test_states(
    events: list[Event],
    verdict: dict[str, Any] | None,
    held: bool,
    starting: bool,
    jobs: list[str] | None,
    state: RunState,
) -> None:
    found = None if jobs is None else parse_queue("\n".join(jobs))
    assert decide_state(verdict, build_progress(events), held, starting, found) is state


def test_a_verdict_from_before_the_last_supervisor_is_not_its_own() -> None:
    assert is_current(FINAL, build_progress(ENDED))
    assert is_current(OLD, build_progress(ENDED)), "the clock was set back"
    assert not is_current({**OLD, "kind": "crash"}, build_progress(ENDED))
    assert not is_current(OLD, build_progress(TRAINS))
    assert not is_current(None, build_progress([]))
